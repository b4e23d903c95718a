-- What the short way receives, see lib/lone_receive.lua.

local MAX_BYTES = 1048576 -- a batch ends at its count or at this size

-- Whether nothing keeps an item from being delivered: of our format, and without a flag that says until when, who waits, or
-- which group it is in.
local function is_plain(item)
  return string.find(item, '^q1 [^=\n]*\n')
    or string.find(item, '^q1 [^\n]*\n') and not string.find(item, '^[^\n]* [xlg]=')
end

-- The first item, which was read alone as a read copies whole items, and the others up to `wanted`; nil if one is not
-- plain, or they are more than a batch may hold.
local function with_others(ready, item, wanted)
  local items, number, bytes = { item }, 1, #item
  while number < wanted do
    local most = math.max(1, math.min(33, math.floor((MAX_BYTES - bytes) * number / bytes)))
    local chunk = redis.call('LRANGE', ready, number, math.min(wanted, number + most) - 1)
    for i = 1, #chunk do
      bytes, number = bytes + #chunk[i], number + 1
      items[number] = chunk[i]
      if bytes > MAX_BYTES or not is_plain(chunk[i]) then return nil end
    end
    if #chunk == 0 then return nil end
  end
  return items
end

-- The same of several levels. `lists`: {key, length, …}, the lowest level first and that of `item` last. Also returns how many
-- items are of each list: {key, number, …}.
local function of_levels(lists, item, wanted)
  local items, taken, bytes, number = { item }, {}, #item, 1
  for at = #lists - 1, 1, -2 do
    local key, length = lists[at], math.min(lists[at + 1], wanted - #items + number)
    while number < length do
      local most = math.max(1, math.min(33, math.floor((MAX_BYTES - bytes) * #items / bytes)))
      local chunk = redis.call('LRANGE', key, number, math.min(length, number + most) - 1)
      for i = 1, #chunk do
        bytes = bytes + #chunk[i]
        if bytes > MAX_BYTES or not is_plain(chunk[i]) then return nil end
        items[#items + 1] = chunk[i]
      end
      if #chunk == 0 then return nil end
      number = number + #chunk
    end
    if number > 0 then taken[#taken + 1], taken[#taken + 2] = key, number end
    number = 0
  end
  return items, taken
end
