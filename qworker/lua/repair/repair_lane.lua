#!lua flags=allow-oom
-- repair_lane.lua: check a lane of senders, and repair it.
-- ROLES      operator
-- KEYS[1]    producers HASH   lane → last sequence number and ms, …; or stats, with `lane:` before the lane
-- KEYS[2]    meta HASH
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    repair           1 to repair, 0 to report
-- ARGV[3]    field            of the lane
-- Returns {'OK', now ms, problem} or {'BROKEN', key, type} {'ARG', name}; problem:
--   unreadable: not a number and a time; it is forgotten · future: last used after now; set to now · '' none
-- O(1).
--- include lib/clock.lua
--- include lib/checks.lua

local HOUR_MS = 3600000
local producers, meta, repair, lane = KEYS[1], KEYS[2], ARGV[2] == '1', ARGV[3]
local refused = broken({ producers, 'hash', meta, 'hash' })
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now or not lane then return { 'ARG', 'now or lane' } end
local found = redis.call('HGET', producers, lane)
if not found then return { 'OK', text(now), '' } end
local number, at_ms, rest = string.match(found, '^(%d+) (%d+)(.*)$')
if not number or not whole(number, 0, MAX_MS) then
  if repair then redis.call('HDEL', producers, lane) end
  return { 'OK', text(now), 'unreadable' }
end
if tonumber(at_ms) <= now + HOUR_MS then return { 'OK', text(now), '' } end
if repair then redis.call('HSET', producers, lane, number .. ' ' .. text(now) .. rest) end
return { 'OK', text(now), 'future' }
