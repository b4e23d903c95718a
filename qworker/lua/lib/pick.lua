-- Remove one waiting item, given as stored; one of several equal ones. The caller read it earlier, so it may be gone by
-- now. The caller may say where it was: the search begins there.

-- A list is searched from both ends, further each time, so an item near an end is found and removed from there. An item in
-- the middle of n costs at most 2 n entries. A call ends after about this many entries.
local MAX_LOOKED = 100000
local looked = 0

-- Find an item in a list: 1 nearer to its head, -1 nearer to its tail; nil if not found.
local function seen_in(key, item)
  local length, reach = redis.call('LLEN', key), 1000
  while length > 0 do
    for rank = -1, 1, 2 do
      local found = redis.call('LPOS', key, item, 'RANK', rank, 'MAXLEN', reach)
      looked = looked + math.min(reach, length)
      if found then return found < length / 2 and 1 or -1 end
    end
    if 2 * reach >= length then return nil end
    reach = math.min(reach * 8, math.ceil(length / 2))
  end
  return nil
end

-- How far an item may have moved since it was seen, for what is sent behind it; and how many bytes are read to find it.
local MOVED, MAX_AROUND = 1000, 262144

-- Find an item in a list that had `behind` items behind it: 1 nearer to its head, -1 nearer to its tail; nil if it is not
-- around there. Removing it costs as many entries as are between it and the nearer end.
local function seen_around(key, item, behind)
  local ahead = redis.call('LLEN', key) - 1 - behind
  local side, near = behind <= ahead and -1 or 1, math.max(0, math.min(behind, ahead))
  looked = looked + 2 * near + MOVED
  if near < MOVED then
    return redis.call('LPOS', key, item, 'RANK', side, 'MAXLEN', near + MOVED) and side or nil
  end
  if redis.call('LINDEX', key, -behind - 1) == item then return side end
  local reach = math.min(MOVED, math.ceil(MAX_AROUND / #item))
  for _, other in ipairs(redis.call('LRANGE', key, -behind - 1 - reach, -behind - 1 + reach)) do
    if other == item then return side end
  end
  return nil
end

-- Parse where items were seen, in the order of the items: {key, behind} each, false if not said; nil if malformed.
local function read_seen(words)
  local seen = {}
  for word in string.gmatch(words, '%S+') do
    local place, behind = string.match(word, '^([%ds]):(%d+)$')
    behind = whole(behind, 0, MAX_MS)
    if not behind and word ~= '-' then return nil end
    seen[#seen + 1] = word ~= '-' and { key = place == 's' and suspect or ready(tonumber(place)), behind = behind }
  end
  return seen
end

-- Find a waiting item: 'delayed' and its due ms, or the key of a list and its nearer end; nil if not found.
local function waits_in(item, levels, seen)
  local around = seen and seen_around(seen.key, item, seen.behind)
  if around then return seen.key, around end
  local due_ms = tonumber(redis.call('ZSCORE', delayed, item))
  if due_ms then return 'delayed', due_ms end
  local side = seen_in(suspect, item)
  if side then return suspect, side end
  for _, number in ipairs(levels) do
    side = seen_in(ready(number), item)
    if side then return ready(number), side end
  end
  return nil
end

local function take_out(item, place, side)
  if place == 'delayed' then redis.call('ZREM', delayed, item) else redis.call('LREM', place, side, item) end
end

local MAX_PICKED = 100
-- A refusal if ARGV from `first` on are not 1-100 own items.
local function bad_items(first)
  if #ARGV < first or #ARGV >= first + MAX_PICKED then return { 'ARG', 'items' } end
  for i = first, #ARGV do
    if kind(ARGV[i]) ~= 'own' or not parse(ARGV[i]) then return { 'ARG', 'item' } end
  end
  return nil
end
