#!lua flags=allow-oom
-- remove.lua: delete a queue, or a shard, with everything in it.
-- ROLES      operator
-- KEYS       see lib/keys.lua; leases: those to delete. Then `others` more keys of the queue
-- ARGV[1]    others           how many of the last keys are not leases
-- ARGV[2]…   leases           ids of the leases
-- Returns {'OK', leases left}, or {'ARG', name}. 0: everything is deleted. Otherwise a consumer received between the
--   caller's read and this call: call again with the leases that are left. Nothing else can be received by then.
-- A lease is deleted in the same step as its deadline and the counters, so that its receipts become stale.
-- O(l) for l leases; memory is freed in the background.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/keys.lua

local others = whole(ARGV[1], 0, #KEYS - FIRST_LEASE + 1)
if not others then return { 'ARG', 'others' } end
local last_lease = #KEYS - others
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], suspect, delayed)
for i = FIRST_LEASE, last_lease do redis.call('UNLINK', KEYS[i]) end
-- A key of another type holds no leases; it is deleted below.
for i = 2, #ARGV do redis.pcall('ZREM', unacked, ARGV[i]) end
local left = redis.pcall('ZCARD', unacked)
if type(left) == 'number' and left > 0 then return { 'OK', left } end
redis.call('UNLINK', unacked, wake, dead, meta, stats, unique, cancelled, journal)
for i = last_lease + 1, #KEYS do redis.call('UNLINK', KEYS[i]) end
return { 'OK', 0 }
