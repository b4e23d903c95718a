#!lua
-- fire.lua: send the message of one slot of a schedule, once, even if several daemons try.
-- ROLES      daemon, operator
-- KEYS[1-5]  see lib/sender_keys.lua
-- KEYS[6]    schedules HASH   `<name>` → spec, `<name>:fired` → last fired slot ms, `<name>:paused` → since when, ms
-- KEYS[7]    journal STREAM
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    schedule name
-- ARGV[3]    slot ms          the time that the schedule names
-- ARGV[4]    spec             as the caller read it; a schedule changed or paused since then does not fire
-- ARGV[5]    priority         0-9
-- ARGV[6]    ttl ms           '' for the queue's, 0 none
-- ARGV[7]    head `q1 <id> `
-- ARGV[8]    tail `[ k=v …]\n<body>`; '' only notes the slot (a missed run that is skipped)
-- Returns {'OK', now ms, 1 fired or 0 fired before, changed or paused, degraded} or a refusal: {'RESHARD'} {'PAUSED'}
--   {'FULL', stored, maxlen} {'BROKEN', key, type} {'ARG', name}; a refused slot stays unfired.
-- O(1).
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/sender_keys.lua
--- include lib/journal.lua
--- include lib/journal_entries.lua
--- include lib/sender_attributes.lua
--- include lib/push.lua

-- A last slot in the future was fired before a clock was set back, or written by another program: ignore it.
local AHEAD_MS = 3600000
local schedules = KEYS[6]
local refused = broken({ ready, 'list', delayed, 'zset', wake, 'list', meta, 'hash', stats, 'hash', schedules, 'hash',
  journal, 'stream' })
if refused then return refused end
local now, name, slot_ms = clock(ARGV[1], meta), ARGV[2], whole(ARGV[3], 0, MAX_MS)
local attributes = read_attributes()
local ttl_ms = ARGV[6] == '' and attributes.ttl_ms or whole(ARGV[6], 0, MAX_MS)
local priority, tail = whole(ARGV[5], 0, 9), ARGV[8]
if not now or not slot_ms or not priority or not ttl_ms or not tail then return { 'ARG', 'slot' } end
local found = redis.call('HMGET', schedules, name, name .. ':fired', name .. ':paused')
local last_ms = tonumber(found[2]) or -1
if found[1] ~= ARGV[4] or found[3] or last_ms >= slot_ms and last_ms <= now + AHEAD_MS then return { 'OK', text(now), 0, 0 } end
if tail ~= '' then
  refused = refusal(attributes, 1)
  if refused then return refused end
  push({ ARGV[7] .. stamp(now, ttl_ms, 0) .. tail }, priority, 0, attributes, now)
end
redis.call('HSET', schedules, name .. ':fired', text(slot_ms))
local degraded = 0
if tail ~= '' then degraded = math.max(count(stats, { sent = 1, stored = 1 }), write_journal('')) end
return { 'OK', text(now), 1, degraded }
