#!lua flags=allow-oom
-- extend.lua: move the visibility deadlines of leases further away, never nearer.
-- ROLES      consumer, operator
-- KEYS[1]    unacked ZSET     lease id → deadline ms
-- KEYS[2]    meta HASH
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    visibility ms    from now, 1-43200000 (12 h)
-- ARGV[3]…   lease ids        1-1000
-- Returns {'OK', now ms, deadline ms per lease; 0 if the lease is gone}, or {'BROKEN', key, type} {'ARG', name}
-- O(k log u): k leases of u.
local MAX_MS = 9007199254740992 -- 2^53: the largest integer that a score keeps

-- The time of this call in ms since 1970: the server's. An explicit time is for tests, and
-- refused (nil) unless the queue's meta.test is set: no client clock reaches a script otherwise.
local function clock(override, meta)
  if override ~= '' then
    if redis.call('HGET', meta, 'test') == '1' then return tonumber(override) end
    return nil
  end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Integers as text: `..` writes 1e+14 from fourteen digits on. An infinite score, which only another program
-- writes, becomes the largest number.
local function text(number)
  return string.format('%.0f', math.max(-MAX_MS, math.min(number, MAX_MS)))
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

local unacked, meta = KEYS[1], KEYS[2]
local refused = broken({ unacked, 'zset', meta, 'hash' })
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
return reply
