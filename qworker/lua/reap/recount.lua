#!lua flags=allow-oom
-- recount.lua: bring the counter of stored messages back between its bounds.
-- ROLES      daemon, operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- Returns {'OK', now ms, the change, degraded} or {'BROKEN', key, type} {'ARG', name}
-- O(1).
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/keys.lua

local refused = broken({ meta, 'hash' })
if refused then return refused end
refused = broken_queue(ALL_LEVELS)
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now then return { 'ARG', 'now' } end

-- The counter drifts by one for each `q1 …` item that another program pushed: it looks like a sent message, and is settled
-- without having been counted. Delayed, suspect and leased messages all count; ready items of other programs do not yet. So
-- the bounds are the sums without and with the ready messages, and the counter is exact if none is ready.
local found = redis.call('HMGET', stats, 'stored', 'unacked')
local stored, in_hand = whole(found[1], -MAX_MS, MAX_MS) or 0, whole(found[2], 0, MAX_MS) or 0
local least = in_hand + redis.call('LLEN', suspect) + redis.call('ZCARD', delayed)
local most = least
for number = 0, 9 do most = most + redis.call('LLEN', ready(number)) end
local change = math.max(least, math.min(stored, most)) - stored
return { 'OK', text(now), text(change), count(stats, { stored = change }) }
