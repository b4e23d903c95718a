#!lua
-- cancel.lua: leave a tombstone for a message; the next script that reads the message drops it.
-- ROLES      operator
-- KEYS[1]    cancelled ZSET   message id → expiry ms of the tombstone
-- KEYS[2]    meta HASH
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    message id
-- ARGV[3]    kept for ms      1-2^53
-- Returns {'OK', now ms} or {'BROKEN', key, type} {'ARG', name}. A full server refuses it: a tombstone takes memory and
--   frees none until its message is read; delete.lua removes a waiting message at once.
-- O(log c): c tombstones.
--- include lib/clock.lua
--- include lib/checks.lua

local cancelled, meta = KEYS[1], KEYS[2]
local refused = broken({ cancelled, 'zset', meta, 'hash' })
if refused then return refused end
local now, kept_ms = clock(ARGV[1], meta), whole(ARGV[3], 1, MAX_MS)
if not now or not kept_ms or not string.find(ARGV[2], '^[%w._-]+$') then return { 'ARG', 'message id' } end
redis.call('ZADD', cancelled, text(math.min(now + kept_ms, MAX_MS)), ARGV[2])
return { 'OK', text(now) }
