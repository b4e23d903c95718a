-- What the short way receives, and how it is delivered, see lib/lone_receive.lua.

local MAX_BYTES = 1048576 -- a batch ends at its count or at this size

-- The end of an item's header if nothing keeps it from being delivered: of our format, and without a flag that says until
-- when, who waits, or which group it is in. Else nil. A pattern takes twice the time of these, which runs for every item.
local find, sub = string.find, string.sub
local MANY = 4096 -- bytes of a body that is not searched
local function is_plain(item)
  local stop = find(item, '\n', 1, true)
  if not stop or sub(item, 1, 3) ~= 'q1 ' then return nil end
  local flag = find(#item < MANY and item or sub(item, 1, stop), '=', 1, true)
  if flag and flag < stop and find(item, '^[^\n]* [xlg]=') then return nil end
  return stop
end

-- The first item, which was read alone as a read copies whole items, and the others up to `wanted`; nil if one is not
-- plain, or they are more than a batch may hold. `lists`: {key, length, …}, the lowest level first and that of `item` last.
-- Also returns how many items are of each list: {key, number, …}. `heads`, where given, gets the headers of the others.
local function with_others(lists, item, wanted, heads)
  local items, taken, bytes, all, number = { item }, {}, #item, 1, 1
  for at = #lists - 1, 1, -2 do
    local key, length = lists[at], math.min(lists[at + 1], wanted - all + number)
    while number < length do
      local most = math.max(1, math.min(33, math.floor((MAX_BYTES - bytes) * all / bytes)))
      local chunk = redis.call('LRANGE', key, number, math.min(length, number + most) - 1)
      for i = 1, #chunk do
        local each = chunk[i]
        bytes, all = bytes + #each, all + 1
        items[all] = each
        local stop = is_plain(each)
        if bytes > MAX_BYTES or not stop then return nil end
        if heads then heads[all] = sub(each, 1, stop - 1) end
      end
      if #chunk == 0 then return nil end
      number = number + #chunk
    end
    if number > 0 then taken[#taken + 1], taken[#taken + 2] = key, number end
    number = 0
  end
  return items, taken
end

-- Write what is delivered into the new lease, which must not exist, with its deadline: one item, or all of `items`, under
-- a key of its own; or the one in the `room` of a lease whose message of field 0 is acked by that. False, with nothing
-- written, if the new lease exists or that message is gone. Other fields of the room, which only another program can have
-- written, move along and keep a deadline. `each`: every item gets a field of its own, as they are settled one by one.
local function made(key, room, item, items, each, deadlines, deadline, id)
  if room and redis.pcall('RENAMENX', room, key) ~= 1 then return false end
  if redis.pcall('ZADD', deadlines, 'NX', deadline, id) == 1 then
    local added
    if room then
      added = redis.pcall('HSET', key, '0', item)
      if added == 0 then return true end
      if added == 1 then redis.call('HDEL', key, '0') end
    elseif not items then
      if redis.pcall('HSETNX', key, '0', item) == 1 then return true end
    elseif not each then
      if redis.pcall('HSETNX', key, 'batch', cmsgpack.pack(items)) == 1 then return true end
    else
      local fields = {}
      for i = 1, #items do fields[2 * i - 1], fields[2 * i] = i, items[i] end
      if redis.pcall('HSET', key, unpack(fields)) == #items then return true end
    end
    redis.call('ZREM', deadlines, id)
  end
  if room then redis.call('RENAME', key, room) end
  return false
end
