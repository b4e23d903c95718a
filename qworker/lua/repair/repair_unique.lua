#!lua flags=allow-oom
-- repair_unique.lua: find unique keys held by messages that are not in the queue, and free them.
-- ROLES      operator
-- KEYS       see lib/keys.lua; all leases of the queue
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    repair           1 to repair, 0 to report
-- ARGV[3]…   key, value       1-100 pairs, as `unique` had them
-- Returns {'OK', now ms, '', 1 per pair whose holder is gone, else 0} or, if it was not checked, {'OK', now ms, why}:
--   busy (the leases changed) or large (over 10,000 messages, or 8 MiB); or {'BROKEN', key, type} {'ARG', name}
-- O(n): n messages of the queue.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/keys.lua
--- include lib/lease.lua
--- include lib/ids_stored.lua

local FIRST_PAIR = 3
local refused = broken({ meta, 'hash' }) or broken_queue(ALL_LEVELS)
if refused then return refused end
local now, repair = clock(ARGV[1], meta), ARGV[2] == '1'
if not now or #ARGV > 202 or #ARGV % 2 == 1 then return { 'ARG', 'now or pairs' } end
local seen, why = ids_stored()
if not seen then return { 'OK', text(now), why } end

local reply = { 'OK', text(now), '' }
for i = FIRST_PAIR, #ARGV, 2 do
  local key, value = ARGV[i], ARGV[i + 1]
  -- A key that is held for a time outlives its message; it is pruned some time after that.
  local timed = string.find(value, '^%S+ %d+ for$')
  local gone = redis.call('HGET', unique, key) == value and not seen[string.match(value, '^%S+') or ''] and not timed
  if gone and repair then redis.call('HDEL', unique, key) end
  reply[#reply + 1] = gone and 1 or 0
end
return reply
