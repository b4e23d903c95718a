#!lua flags=allow-oom
-- repair_key.lua: check that a key has its type and does not expire, and repair it.
-- ROLES      operator
-- KEYS[1]    any              of the queue, which must not expire
-- KEYS[2]    any              where a key of another type is moved; must not exist
-- KEYS[3]    meta HASH        of the queue
-- ARGV[1]    now ms           '' (tests: see clock.lua; only if meta is a HASH)
-- ARGV[2]    repair           1 to repair, 0 to report
-- ARGV[3]    type             that the key must hold
-- Returns {'OK', now ms, problem: type, expiry or '', the type found, or ms left} or {'ARG', name}
-- O(1).
--- include lib/clock.lua
--- include lib/checks.lua

local key, aside, repair, expected = KEYS[1], KEYS[2], ARGV[2] == '1', ARGV[3]
if not key or not aside or not expected then return { 'ARG', 'keys or type' } end
local now = clock(ARGV[1], KEYS[3])
if not now then return { 'ARG', 'now' } end
local refused = broken({ key, expected })
if refused then
  -- Nothing is deleted: its owner may want the data back.
  if repair and redis.call('RENAMENX', key, aside) == 0 then return { 'ARG', 'aside' } end
  return { 'OK', text(now), 'type', refused[3] }
end
local left_ms = redis.call('PTTL', key)
if left_ms < 0 then return { 'OK', text(now), '', '' } end
if repair then redis.call('PERSIST', key) end
return { 'OK', text(now), 'expiry', text(left_ms) }
