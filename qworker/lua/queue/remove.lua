#!lua flags=allow-oom
-- remove.lua: delete a queue, or a shard, with everything in it.
-- ROLES      operator
-- KEYS       see lib/keys.lua; leases: those that are deleted. Then `others` more: keys of the queue beside these
-- ARGV[1]    others           how many of the last keys are no leases
-- ARGV[2]…   leases           ids of the leases
-- Returns {'OK', leases left}: 0 where all is gone. Else somebody has received meanwhile, and it is to be called again
--   with these leases; nothing else is left to be received. Or {'ARG', name}.
-- A lease goes in the same step as its deadline and the counters, so that no receipt of it counts any more.
-- O(l) for l leases; the memory of what they held is freed behind.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/keys.lua

local others = whole(ARGV[1], 0, #KEYS - FIRST_LEASE + 1)
if not others then return { 'ARG', 'others' } end
local last_lease = #KEYS - others
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], suspect, delayed)
for i = FIRST_LEASE, last_lease do redis.call('UNLINK', KEYS[i]) end
-- One that is no ZSET has no leases, and goes below.
for i = 2, #ARGV do redis.pcall('ZREM', unacked, ARGV[i]) end
local left = redis.pcall('ZCARD', unacked)
if type(left) == 'number' and left > 0 then return { 'OK', left } end
redis.call('UNLINK', unacked, wake, dead, meta, stats, unique, cancelled, journal)
for i = last_lease + 1, #KEYS do redis.call('UNLINK', KEYS[i]) end
return { 'OK', 0 }
