#!lua flags=allow-oom
-- create.lua: create a queue that does not exist yet.
-- ROLES      operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]…   attribute, value pairs; the value '' leaves an attribute at its default
-- Returns {'OK', now ms}, or a refusal: {'EXISTS'} if any of its keys exists, whatever it holds, or {'ARG', name}
-- O(a): a attributes. It takes no time: meta.test, which would allow one, is a key of the queue.
--- include lib/clock.lua

local meta = KEYS[16]
if #ARGV % 2 == 1 then return { 'ARG', 'attributes' } end
if redis.call('EXISTS', unpack(KEYS)) > 0 then return { 'EXISTS' } end
local now = text(clock('', meta))
for i = 1, #ARGV, 2 do
  if ARGV[i + 1] ~= '' then redis.call('HSET', meta, ARGV[i], ARGV[i + 1]) end
end
redis.call('HSET', meta, 'created_ms', now, 'modified_ms', now)
return { 'OK', now }
