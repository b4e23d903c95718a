#!lua flags=allow-oom
-- extend.lua: move the visibility deadlines of leases further away, never nearer, and name their cancelled messages.
-- ROLES      consumer, operator
-- KEYS[1]    unacked ZSET     lease id → deadline ms
-- KEYS[2]    meta HASH
-- KEYS[3]    cancelled ZSET   message id → expiry ms
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    visibility ms    from now, 1-43200000 (12 h)
-- ARGV[3]…   lease ids        1-1000
-- Returns {'OK', now ms, deadline ms per lease; 0 if the lease is gone; then per cancelled message that a lease holds
--   `<position of the lease in the call, from 1> <index>`}, or {'BROKEN', key, type} {'ARG', name}
-- A call looks for tombstones of at least 1,000 messages, or 4 MiB of them, from another lease on each time; a queue without
-- tombstones pays one EXISTS.
-- O(k log u): k leases of u; with tombstones also O(n log c): n messages, c tombstones.
local MAX_MS = 9007199254740992 -- 2^53: the largest integer that a score keeps

-- Integers as text: `..` writes 1e+14 from fourteen digits on. An infinite score, which only another program
-- writes, becomes the largest number.
local function text(number)
  return string.format('%.0f', math.max(-MAX_MS, math.min(number, MAX_MS)))
end

-- The time of this call in ms since 1970, also as text: the server's. An explicit time is for tests, and
-- refused (nil) unless the queue's meta.test is set: no client clock reaches a script otherwise.
local function clock(override, meta)
  if override ~= '' then
    local now = redis.call('HGET', meta, 'test') == '1' and tonumber(override) or nil
    return now, now and text(now)
  end
  local t = redis.call('TIME')
  local now = t[1] .. string.sub('00000' .. t[2], -6, -4) -- the thousands of the microseconds
  return tonumber(now), now
end
-- Checks before the first write. A script is isolated but not rolled back: a command that fails
-- after a write leaves that write behind.

-- A refusal that names the first of {key, type, key, type, …} that holds another type; nil if none does. Most keys of a
-- queue usually do not exist: EXISTS counts those that do, and the types are read until all of these are found. So the
-- likely ones come first.
local function broken(expected)
  local keys = {}
  for i = 1, #expected, 2 do keys[#keys + 1] = expected[i] end
  local unseen = redis.call('EXISTS', unpack(keys))
  for i = 1, #expected, 2 do
    if unseen == 0 then return nil end
    local found = redis.call('TYPE', expected[i]).ok
    if found ~= 'none' then
      if found ~= expected[i + 1] then return { 'BROKEN', expected[i], found } end
      unseen = unseen - 1
    end
  end
  return nil
end

-- A whole number within minimum…maximum, or nil.
local function whole(value, minimum, maximum)
  local number = tonumber(value)
  if not number or number ~= math.floor(number) or number < minimum or number > maximum then
    return nil
  end
  return number
end

local MAX_VISIBILITY_MS = 43200000 -- 12 h
local DEFAULT_VISIBILITY_MS = 30000
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

local unacked, meta, cancelled = KEYS[1], KEYS[2], KEYS[3]
local refused = broken({ unacked, 'zset', meta, 'hash', cancelled, 'zset' })
if refused then return refused end
local now, visibility_ms = clock(ARGV[1], meta), whole(ARGV[2], 1, MAX_VISIBILITY_MS)
if not now or not visibility_ms or #ARGV > 1002 then return { 'ARG', 'visibility_ms' } end
local reply = { 'OK', text(now) }
for i = 3, #ARGV do
  local deadline = tonumber(redis.call('ZSCORE', unacked, ARGV[i]))
  if deadline then
    deadline = math.min(math.max(deadline, now + visibility_ms), now + MAX_VISIBILITY_MS)
    redis.call('ZADD', unacked, text(deadline), ARGV[i])
  end
  reply[i] = text(deadline or 0)
end
if redis.call('EXISTS', cancelled) == 0 then return reply end

local MAX_LOOKED, MAX_BYTES, looked, bytes, number = 1000, 4194304, 0, 0, #ARGV - 2
for i = 1, number do
  if looked >= MAX_LOOKED or bytes >= MAX_BYTES then break end
  local at = (i + now) % number + 1
  -- Made here, not declared: it is in the slot of the queue.
  local key = string.sub(meta, 1, -5) .. 'lease:' .. ARGV[at + 2]
  for _, entry in ipairs(broken({ key, 'hash' }) and {} or read_lease(key)) do
    looked, bytes = looked + 1, bytes + #entry[2]
    local id = string.match(entry[2], '^q1 ([%w._-]+) ') or ARGV[at + 2] .. '.' .. entry[3]
    if redis.call('ZSCORE', cancelled, id) then reply[#reply + 1] = at .. ' ' .. entry[3] end
  end
end
return reply
