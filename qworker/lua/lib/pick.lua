-- Take one waiting item, given as it is stored, out of where it waits; one of several equal ones. Who asks has read it
-- before, so it may be gone by now.

-- A list is looked at from both ends, further each time: what is near an end is found and taken from there. An item in the
-- middle of n costs at most 2 n entries of a list. A call ends after it has looked at about so many.
local MOST_LOOKED = 100000
local looked = 0

-- Where an item stands in a list: 1 nearer to its head, -1 nearer to its tail; nil if it is not seen.
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

-- Where an item waits: 'delayed' and its due ms, or the key of a list and the end that is nearer; nil where it is not seen.
local function waits_in(item, levels)
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
-- A refusal where ARGV from 2 on are not 1-100 items of ours.
local function bad_items()
  if #ARGV < 2 or #ARGV > MAX_PICKED + 1 then return { 'ARG', 'items' } end
  for i = 2, #ARGV do
    if kind(ARGV[i]) ~= 'own' or not parse(ARGV[i]) then return { 'ARG', 'item' } end
  end
  return nil
end
