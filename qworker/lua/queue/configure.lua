#!lua flags=allow-oom
-- configure.lua: set attributes of a queue; create it if it is new.
-- ROLES      operator
-- KEYS[1]    meta HASH
-- KEYS[2]    wake LIST
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]…   attribute, value pairs; the value '' removes the attribute (back to the default)
-- Returns {'OK', now ms} or {'BROKEN', key, type} {'ARG', name}
-- O(a): a attributes.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua

local meta, wake = KEYS[1], KEYS[2]
local refused = broken({ meta, 'hash', wake, 'list' })
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now or #ARGV % 2 == 0 then return { 'ARG', 'attributes' } end
local before = redis.call('HGET', meta, 'paused') or ''
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', meta, ARGV[i])
  else
    redis.call('HSET', meta, ARGV[i], ARGV[i + 1])
  end
end
redis.call('HSETNX', meta, 'created_ms', text(now))
redis.call('HSET', meta, 'modified_ms', text(now))
local after = redis.call('HGET', meta, 'paused') or ''
local opened = (before == 'out' or before == 'all') and after ~= 'out' and after ~= 'all'
if opened then ring(wake, MAX_TOKENS) end
return { 'OK', text(now) }
