#!lua
-- take_over.lua: store messages of another system once, however often they are imported.
-- ROLES      operator
-- KEYS[1-5]  see lib/sender_keys.lua
-- KEYS[6]    imported HASH    mark of a message → its id here; `run` → the import that may write
-- KEYS[7]    journal STREAM
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    run              token of the import; only the latest one may write
-- ARGV[3]    priority         0-9
-- ARGV[4]    f                marks to forget, 0-1000, of messages that the other system has lost; then f marks
-- then       n                messages, 0-1000; then n × (mark, delay ms, ttl ms ('' for the queue's, 0 none),
--   age ms, receives 0-999999, head `q1 <id> `, tail `[ k=v …]\n<body>`)
-- A call without messages ends the import: the ledger is deleted if it holds no other mark.
-- Returns {'OK', now ms, stored, known (stored by an earlier call), degraded}, or a refusal:
--   {'SUPERSEDED'} {'RESHARD'} {'PAUSED'} {'FULL', stored, maxlen} {'BROKEN', key, type} {'ARG', name}
-- O(f + n) for ready, O(f + n log d) for delayed messages, d being delayed already.
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

local imported, FIELDS, MAX_MESSAGES, MAX_RECEIVES = KEYS[6], 7, 1000, 999999
local refused = broken({ ready, 'list', delayed, 'zset', wake, 'list', meta, 'hash', stats, 'hash',
  imported, 'hash', journal, 'stream' })
if refused then return refused end
local now, priority, forgets = clock(ARGV[1], meta), whole(ARGV[3], 0, 9), whole(ARGV[4], 0, MAX_MESSAGES)
local number = forgets and whole(ARGV[5 + forgets], 0, MAX_MESSAGES)
if not now or not priority or not number or #ARGV ~= 5 + forgets + FIELDS * number then return { 'ARG', 'header' } end
if redis.call('HGET', imported, 'run') ~= ARGV[2] then return { 'SUPERSEDED' } end
local attributes, forgotten = read_attributes(), {}
for i = 5, 4 + forgets do forgotten[ARGV[i]] = true end

-- Collect messages by their delay: those of the same due time are stored together.
local delays, marks, stored, known = {}, {}, 0, 0
for message = 0, number - 1 do
  local at = 5 + forgets + FIELDS * message
  local mark, delay_ms, age_ms = ARGV[at + 1], whole(ARGV[at + 2], 0, MAX_MS), whole(ARGV[at + 4], 0, MAX_MS)
  local ttl_ms = ARGV[at + 3] == '' and attributes.ttl_ms or whole(ARGV[at + 3], 0, MAX_MS)
  local receives, id = whole(ARGV[at + 5], 0, MAX_RECEIVES), string.match(ARGV[at + 6], '^q1 (%S+) $')
  if mark == 'run' or not delay_ms or not age_ms or not ttl_ms or not receives or not id then
    return { 'ARG', 'message' }
  end
  if marks[mark] or not forgotten[mark] and redis.call('HEXISTS', imported, mark) == 1 then
    known = known + 1
  else
    marks[mark], stored = id, stored + 1
    local before = text(math.max(now - age_ms, 0)) .. ' ' .. text(receives)
    local middle = string.gsub(stamp(now, ttl_ms, delay_ms), '^%d+ 0', before)
    delays[delay_ms] = delays[delay_ms] or {}
    table.insert(delays[delay_ms], ARGV[at + 6] .. middle .. ARGV[at + 7])
  end
end
refused = refusal(attributes, stored)
if refused and stored > 0 then return refused end

attributes.ungrouped = true
for delay_ms, items in pairs(delays) do push(items, priority, delay_ms, attributes, now) end
for mark in pairs(forgotten) do redis.call('HDEL', imported, mark) end
for mark, id in pairs(marks) do redis.call('HSET', imported, mark, id) end
if number == 0 and redis.call('HLEN', imported) == 1 then redis.call('DEL', imported) end
local degraded = math.max(count(stats, { sent = stored, stored = stored }), write_journal(''))
return { 'OK', text(now), stored, known, degraded }
