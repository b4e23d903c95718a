#!lua
-- start.lua: store the message of a run whose id the caller has chosen, unless there is a run of this id.
-- ROLES      producer, consumer, operator
-- KEYS[1-5]  see lib/sender_keys.lua
-- KEYS[6]    run HASH         see step.lua; `@start` is what it was started with
-- KEYS[7]    runs ZSET        see step.lua
-- KEYS[8]    cancelled ZSET   message id → expiry ms
-- KEYS[9]    join HASH        see join.lua: of a group of calls that has the id
-- KEYS[10]   journal STREAM
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    delay ms         '' for the queue's, or '@' and a due time in ms since 1970
-- ARGV[3-4]  ttl ms, priority '' for the queue's, 0 none; 0-9
-- ARGV[5]    maxlen           '', or of this call; the lower of this and the queue's counts
-- ARGV[6-7]  head `q1 <id> `, tail `[ k=v …]\n<body>`
-- ARGV[8]    start            what it is started with, 1-1024 bytes, see docs/protocol.md
-- Returns {'OK', 1 stored or 0 started before, now ms, degraded, what the run of this id was started with: '' if that was
--   without an id of its own}, or a refusal: {'PAUSED'} {'FULL', stored, maxlen} {'TOOLARGE', bytes, maxsize}
--   {'TAKEN'}: a group of calls has the id, {'BROKEN', key, type} {'ARG', name}
-- A run that was started before is reported also by a queue that takes no messages now.
-- O(1) for ready, O(log d) for delayed messages, d being delayed already.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/rights.lua
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

local run, runs, cancelled, join, attributes, refused = KEYS[6], KEYS[7], KEYS[8], KEYS[9], read_attributes()
refused = refused or broken({ stats, 'hash', ready, 'list', wake, 'list', run, 'hash', runs, 'zset', delayed, 'zset', cancelled,
  'zset', journal, 'stream', join, 'hash' })
if refused then return refused end
local now, priority, head, tail, start = clock(ARGV[1], meta), whole(ARGV[4], 0, 9), ARGV[6], ARGV[7], ARGV[8]
local id = string.match(head, '^q1 ([%w._-]+) $')
if not now or not priority or not id or #id > 64 or string.sub(run, -#id - 5) ~= ':run:' .. id then return { 'ARG', 'header' } end
if not start or start == '' or #start > 1024 then return { 'ARG', 'start' } end
local delay_ms = ARGV[2] == '' and attributes.delay_ms or whole(ARGV[2], 0, MAX_MS)
if string.sub(ARGV[2], 1, 1) == '@' then
  local due_ms = whole(string.sub(ARGV[2], 2), 0, MAX_MS)
  delay_ms = due_ms and math.max(due_ms - now, 0)
end
local ttl_ms = ARGV[3] == '' and attributes.ttl_ms or whole(ARGV[3], 0, MAX_MS)
if not delay_ms or not ttl_ms then return { 'ARG', 'delay or ttl' } end
if not lower_maxlen(attributes, ARGV[5] ~= '' and ARGV[5] or nil) then return { 'ARG', 'maxlen' } end

if redis.call('EXISTS', run) == 1 then return { 'OK', 0, text(now), 0, redis.call('HGET', run, '@start') or '' } end
-- Both would keep their results in one key, and their messages would have one id.
if redis.call('EXISTS', join) == 1 then return { 'TAKEN' } end
refused = refusal(attributes, 1)
if refused then return refused end
local bytes = #tail - (string.find(tail, '\n', 1, true) or 0)
if attributes.maxsize > 0 and bytes > attributes.maxsize then return { 'TOOLARGE', text(bytes), text(attributes.maxsize) } end

-- The state of a run without its message would answer that it was started.
refused = delay_ms > 0 and denied('messages', 'ZADD', delayed, '0', '') or denied('messages', 'RPUSH', ready, '')
  or denied('runs', 'ZADD', runs, '0', '') or denied('runs', 'ZREM', cancelled, '') or denied('messages', 'HSET', meta, 'levels', '')
if refused then return refused end
redis.call('HSET', run, '@start', start)
redis.call('ZADD', runs, text(now), id)
redis.call('ZREM', cancelled, id) -- a cancel of an earlier run of this id
push({ head .. stamp(now, ttl_ms, delay_ms) .. tail }, priority, delay_ms, attributes, now)
local degraded = math.max(count(stats, { sent = 1, stored = 1 }), write_journal(''))
return { 'OK', 1, text(now), degraded, '' }
