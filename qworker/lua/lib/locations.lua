-- Locations: where a caller saw an item. A location is four arguments:
--   place (0-9 a level of ready, suspect, delayed, dead, or lease) · number of the lease among those of the call, else ''
--   · at: index in the lease, or entry id of the dead letter, else '' · the item itself
local LOCATION = 4

local function location(first)
  local place, number = ARGV[first], whole(ARGV[first + 1], 1, 64)
  local found = { place = place, at = ARGV[first + 2], item = ARGV[first + 3] }
  if string.find(place or '', '^%d$') then
    found.key, found.list = ready(tonumber(place)), true
  elseif place == 'suspect' then
    found.key, found.list = suspect, true
  elseif place == 'delayed' or place == 'dead' then
    found.key = place == 'dead' and dead or delayed
  elseif place == 'lease' and number then
    found.key = KEYS[FIRST_LEASE + number - 1]
    found.lease = found.key and lease_id(found.key)
  end
  return found.key and found.at and found.item and found or nil
end

-- How many copies of the item are still there: 0, 1, or 2 for a list with more than one.
local function copies(one)
  if one.list then return #redis.call('LPOS', one.key, one.item, 'RANK', -1, 'COUNT', 2) end
  if one.place == 'delayed' then return redis.call('ZSCORE', one.key, one.item) and 1 or 0 end
  if one.place == 'lease' then
    for _, entry in ipairs(read_lease(one.key)) do
      if tostring(entry[3]) == one.at then return entry[2] == one.item and 1 or 0 end
    end
    return 0
  end
  local entry = letter(one.at)
  return entry and letter_field(entry, 'envelope') == one.item and 1 or 0
end

-- Remove the item; by now it is also somewhere else. A ready item counts as stored only if a script sent it, which
-- the item does not show: see recount.lua.
local function clear(one, amounts)
  if one.list then
    redis.call('LREM', one.key, -1, one.item)
  elseif one.place == 'delayed' then
    redis.call('ZREM', one.key, one.item)
    if has_groups then groups().leave_seats_of({ one.item }) end
  elseif one.place == 'dead' then
    redis.call('XDEL', one.key, one.at)
  else
    loosen(one.key)
    take_out_of(one.key, { one.at })
    if one.lease and redis.call('EXISTS', one.key) == 0 then redis.call('ZREM', unacked, one.lease) end
    amounts.unacked = (amounts.unacked or 0) - 1
  end
  if one.place ~= 'dead' and not string.find(one.place, '^%d$') then amounts.stored = (amounts.stored or 0) - 1 end
end
