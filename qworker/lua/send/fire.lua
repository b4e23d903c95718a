#!lua
-- fire.lua: send the message of one slot of a schedule, once, even if several daemons try.
-- ROLES      daemon, operator
-- KEYS[1-5]  see lib/sender_keys.lua
-- KEYS[6]    schedules HASH   `<name>` → spec, `<name>:fired` → last fired slot ms, `<name>:paused` → since when, ms
-- KEYS[7]    unique HASH      unique key → message id and expiry ms
-- KEYS[8]    cancelled ZSET   message id → expiry ms of the tombstone
-- KEYS[9]    journal STREAM
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    schedule name
-- ARGV[3]    slot ms          the time that the schedule names
-- ARGV[4]    spec             as the caller read it; a schedule changed or paused since then does not fire
-- ARGV[5]    priority         0-9
-- ARGV[6]    ttl ms           '' for the queue's, 0 none
-- ARGV[7]    head `q1 <id> `
-- ARGV[8]    tail `[ k=v …]\n<body>`; '' only notes the slot (a missed run that is skipped)
-- ARGV[9]    delay ms         of the message: its jitter
-- ARGV[10]   unique key       that the tail names (flag u), held by the message until it ends; '' for none
-- ARGV[11]   overlap          if another message holds the key: 'skip' notes the slot without a message; 'queue' leaves it
--   unfired; 'cancel' does too, and leaves a tombstone for that message
-- Returns {'OK', now ms, 1 fired or 0 not (fired before, changed, paused or kept out), degraded, id of the message that
--   keeps it out or ''} or a refusal: {'RESHARD'} {'PAUSED'} {'FULL', stored, maxlen} {'GROUPFULL', group, limit}
--   {'DIVIDED', group, shards}: a group lives in one shard, which need not be this one; {'BROKEN', key, type} {'ARG', name};
--   a refused slot stays unfired.
-- O(1); O(log d + log c) with a delay or a tombstone, d being delayed and c cancelled.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/sender_keys.lua
--- include lib/journal_entries.lua
--- include lib/journal.lua
--- include lib/sender_attributes.lua
--- include lib/stamp.lua
--- include lib/group_records.lua
--- include lib/groups.lua
--- include lib/group_writes.lua
--- include lib/group_lines.lua
--- include lib/group_limits.lua
--- include lib/group_members.lua
--- include lib/packed_slots.lua
--- include lib/group_slots.lua
--- include lib/push.lua

-- A last slot in the future was fired before a clock was set back, or written by another program: ignore it.
local AHEAD_MS = 3600000
local TOMBSTONE_MS = 604800000 -- 7 days, as of a cancel
local schedules, unique, cancelled = KEYS[6], KEYS[7], KEYS[8]
local refused = broken({ schedules, 'hash', stats, 'hash', ready, 'list', delayed, 'zset', wake, 'list', meta, 'hash',
  unique, 'hash', cancelled, 'zset', journal, 'stream' })
if refused then return refused end
local now, name, slot_ms = clock(ARGV[1], meta), ARGV[2], whole(ARGV[3], 0, MAX_MS)
local attributes = read_attributes()
local ttl_ms = ARGV[6] == '' and attributes.ttl_ms or whole(ARGV[6], 0, MAX_MS)
local priority, tail, delay_ms = whole(ARGV[5], 0, 9), ARGV[8], whole(ARGV[9], 0, MAX_MS)
local key, overlap = ARGV[10], ARGV[11]
if not now or not slot_ms or not priority or not ttl_ms or not delay_ms then return { 'ARG', 'slot' } end
local known = key == '' or overlap == 'skip' or overlap == 'queue' or overlap == 'cancel'
if not key or not known then return { 'ARG', 'overlap' } end
local found = redis.call('HMGET', schedules, name, name .. ':fired', name .. ':paused')
local last_ms = tonumber(found[2]) or -1
if found[1] ~= ARGV[4] or found[3] or last_ms >= slot_ms and last_ms <= now + AHEAD_MS then
  return { 'OK', text(now), 0, 0, '' }
end
local id, until_ms = string.match(key ~= '' and redis.call('HGET', unique, key) or '', '^(%S+) (%d+)')
local holder = id and tonumber(until_ms) > now and id or ''
if holder ~= '' then
  if overlap == 'skip' then redis.call('HSET', schedules, name .. ':fired', text(slot_ms)) end
  if overlap == 'cancel' then redis.call('ZADD', cancelled, text(now + TOMBSTONE_MS), holder) end
  return { 'OK', text(now), 0, 0, holder }
end
if tail ~= '' then
  -- It lives from when it is ready.
  local lives_ms = ttl_ms > 0 and ttl_ms + delay_ms or 0
  local items = { ARGV[7] .. stamp(now, lives_ms, delay_ms) .. tail }
  local group, shards = group_of(items[1]), tonumber(string.match(attributes.shards or '', '^%d+')) or 1
  refused = refusal(attributes, 1) or group and shards > 1 and { 'DIVIDED', group, text(shards) }
    or group_refusal(items, group, attributes)
  if refused then return refused end
  push(items, priority, delay_ms, attributes, now)
  if key ~= '' then redis.call('HSET', unique, key, string.match(ARGV[7], '^q1 (%S+)') .. ' ' .. text(MAX_MS)) end
end
redis.call('HSET', schedules, name .. ':fired', text(slot_ms))
local degraded = 0
if tail ~= '' then degraded = math.max(count(stats, { sent = 1, stored = 1 }), write_journal('')) end
return { 'OK', text(now), 1, degraded, '' }
