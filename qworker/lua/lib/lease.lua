-- A lease is a HASH of one of two shapes. Messages that were delivered together share one field until one of them is
-- settled separately, which is rare:   batch → their items as a MessagePack array, index 1 the first
-- After that, and for a message that was delivered alone (index 0):   index → item

local MAX_FIELDS = 500 -- of one command

local function write_items(key, items)
  if #items == 1 then
    redis.call('HSET', key, '0', items[1])
  else
    redis.call('HSET', key, 'batch', cmsgpack.pack(items))
  end
end

-- The items of such a field; nil if it is not such an array.
local function unpacked(batch)
  local read, items = pcall(cmsgpack.unpack, batch)
  if not read or type(items) ~= 'table' or #items == 0 then return nil end
  for _, item in ipairs(items) do
    if type(item) ~= 'string' then return nil end
  end
  return items
end

-- Returns {{number, item, index}, …} in order; the index is a number as well where the lease is not loose.
local function read_lease(key)
  local flat = redis.call('HGETALL', key)
  local entries, sorted, last = {}, true, -1
  for i = 1, #flat, 2 do
    local items = flat[i] == 'batch' and unpacked(flat[i + 1])
    if items then
      for number, item in ipairs(items) do entries[#entries + 1] = { number, item, number } end
      sorted = #flat == 2
    else
      local number = tonumber(flat[i]) or 0
      sorted, last = sorted and number > last, number
      entries[#entries + 1] = { number, flat[i + 1], flat[i] }
    end
  end
  -- Over 64 bytes a HASH forgets the order of its fields.
  if not sorted then table.sort(entries, function(a, b) return a[1] < b[1] end) end
  return entries
end

-- The number of messages in the shared field, from the first bytes of the array; nil without such a field.
local function batch_size(key)
  local first, high, low = string.byte(redis.call('HGET', key, 'batch') or '', 1, 3)
  if first == 0xdc and low then return high * 256 + low end
  return first and (first >= 0x90 and first <= 0x9f and first - 0x90 or 1)
end

-- The number of messages in a lease.
local function count_held(key)
  return (batch_size(key) or 1) + redis.call('HLEN', key) - 1
end

-- Give each message a field of its own, before one of them is removed.
local function loosen(key)
  local batch = redis.call('HGET', key, 'batch')
  local items = batch and unpacked(batch)
  if not items then return end
  for first = 1, #items, MAX_FIELDS do
    local fields = {}
    for i = first, math.min(first + MAX_FIELDS - 1, #items) do
      fields[#fields + 1] = i
      fields[#fields + 1] = items[i]
    end
    redis.call('HSET', key, unpack(fields))
  end
  redis.call('HDEL', key, 'batch')
end

-- Read the items of outcomes of a loose lease, false for those that are gone.
local function read_held(lease, first, last)
  local indices = {}
  for i = first, last do indices[#indices + 1] = lease.others[i].index end
  return redis.call('HMGET', lease.key, unpack(indices))
end

-- Remove messages from a loose lease; returns how many of them it held.
local function take_out_of(key, indices)
  local gone = 0
  for first = 1, #indices, MAX_FIELDS do
    gone = gone + redis.call('HDEL', key, unpack(indices, first, math.min(first + MAX_FIELDS - 1, #indices)))
  end
  return gone
end

-- When a lease was delivered or last extended, in ms as text: its deadline minus its visibility, which is the queue's
-- unless its id names another (`<random>-<counter>-<visibility ms>`).
local function received_at(id, deadline, visibility_ms)
  visibility_ms = whole(string.match(id, '^%w+%-%d+%-(%d+)$'), 1, MAX_VISIBILITY_MS) or visibility_ms
  return text(math.max(0, deadline - visibility_ms))
end
