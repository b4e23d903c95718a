#!lua flags=allow-oom
-- repair_run.lua: find runs that have not ended and whose messages are not in the queue, and end them.
-- ROLES      operator
-- KEYS       see lib/keys.lua, with all leases of the queue. The keys of runs are made here, see lib/ends.lua
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    repair           1 to repair, 0 to report
-- ARGV[3]    keep ms          1-2592000000: how long to keep the state of a run that is ended, and its result
-- ARGV[4]…   message ids      1-100 runs
-- Returns {'OK', now ms, '', 1 per run whose message is gone, else 0} or, if it was not checked, {'OK', now ms, why}:
--   busy (the leases changed) or large (over 10,000 messages, or 8 MiB); or {'BROKEN', key, type} {'ARG', name}
-- Clients that wait for such a run are notified that it was discarded.
-- O(n): n messages of the queue, dead ones among them.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/keys.lua
--- include lib/lease.lua
--- include lib/ids_stored.lua

local MAX_KEEP_MS, FIRST_ID, base = 2592000000, 4, string.sub(meta, 1, -5)
local runs = base .. 'runs'
local refused = broken({ meta, 'hash', runs, 'zset' }) or broken_queue(ALL_LEVELS)
if refused then return refused end
local now, repair, keep_ms = clock(ARGV[1], meta), ARGV[2] == '1', whole(ARGV[3], 1, MAX_KEEP_MS)
if not now or not keep_ms or #ARGV < FIRST_ID or #ARGV > FIRST_ID + 99 then return { 'ARG', 'now or ids' } end
local seen, why = ids_stored(true)
if not seen then return { 'OK', text(now), why } end

local reply = { 'OK', text(now), '' }
for i = FIRST_ID, #ARGV do
  local id = ARGV[i]
  local gone = not seen[id] and redis.call('ZSCORE', runs, id)
  if gone and repair then
    local result, run = base .. 'result:' .. id, base .. 'run:' .. id
    redis.pcall('SET', result, 'discarded', 'NX', 'PX', text(keep_ms))
    redis.pcall('SPUBLISH', result, '')
    redis.pcall('PEXPIRE', run, text(keep_ms))
    redis.call('ZREM', runs, id)
  end
  reply[#reply + 1] = gone and 1 or 0
end
return reply
