#!lua
-- accept.lua: store messages from the outbox of another queue once, however often they are relayed.
-- ROLES      consumer, daemon, operator
-- KEYS[1-5]  see lib/sender_keys.lua
-- KEYS[6]    producers HASH   lane → last number, ms
-- KEYS[7]    journal STREAM
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    lane             of the outbox
-- ARGV[3]    priority         0-9, of all messages
-- ARGV[4]    n                messages, 1-1000; then n × (number, greater than the one before it, delay ms, ttl ms (both ''
--                             for the queue's, ttl 0 none), head `q1 <id> `, tail `[ k=v …]\n<body>`)
-- Returns {'OK', now ms, number of the last message that is stored, by this call or before, degraded}, or a refusal if none
--   is: {'RESHARD', mark} {'PAUSED'} {'FULL', stored, maxlen} {'BROKEN', key, type} {'ARG', name}
-- Callers read the entries of an outbox from its head, so all before the first one of a call are stored.
-- O(n) for ready, O(n log d) for delayed messages, d being delayed already.
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
--- include lib/awaited.lua

local producers, attributes, refused = KEYS[6], read_attributes()
refused = refused or broken({ stats, 'hash', ready, 'list', producers, 'hash', wake, 'list', delayed, 'zset', journal, 'stream' })
if refused then return refused end
local now, lane, priority, number = clock(ARGV[1], meta), ARGV[2], whole(ARGV[3], 0, 9), whole(ARGV[4], 1, 1000)
if not now or not string.find(lane, '^out%-%x+$') or not priority or not number or #ARGV ~= 4 + 5 * number then
  return { 'ARG', 'header' }
end

local last = tonumber(string.match(redis.call('HGET', producers, lane) or '', '^%d+')) or 0
local messages, before = {}, 0
for at = 5, #ARGV, 5 do
  local message = {
    number = whole(ARGV[at], before + 1, MAX_MS),
    delay_ms = ARGV[at + 1] == '' and attributes.delay_ms or whole(ARGV[at + 1], 0, MAX_MS),
    ttl_ms = ARGV[at + 2] == '' and attributes.ttl_ms or whole(ARGV[at + 2], 0, MAX_MS),
    head = ARGV[at + 3], tail = ARGV[at + 4],
  }
  if not message.number or not message.delay_ms or not message.ttl_ms or not string.find(message.head, '^q1 %S+ $') then
    return { 'ARG', 'message' }
  end
  before = message.number
  if message.number > last then messages[#messages + 1] = message end
end
if #messages == 0 then return { 'OK', text(now), text(before), 0 } end
refused = refusal(attributes, 1)
if refused then return refused end
local room = #messages
if attributes.maxlen > 0 then
  room = math.min(room, attributes.maxlen - (tonumber(redis.call('HGET', stats, 'stored')) or 0))
end

-- Messages that are stored without the number of the last one would be stored again.
refused = denied('messages', 'HSET', producers, lane, '') or denied('messages', 'RPUSH', ready, '')
  or denied('messages', 'ZADD', delayed, '0', '')
if refused then return refused end
-- Neighbours of the same due time are stored together.
local first, amounts = 1, { sent = room, stored = room }
while first <= room do
  local items, delay_ms = {}, messages[first].delay_ms
  while first <= room and messages[first].delay_ms == delay_ms do
    local message = messages[first]
    note_awaited(message.tail, amounts)
    items[#items + 1] = message.head .. stamp(now, message.ttl_ms, delay_ms) .. message.tail
    first = first + 1
  end
  push(items, priority, delay_ms, attributes, now)
  if priority > 0 and not string.find(attributes.levels, text(priority), 1, true) then
    attributes.levels = attributes.levels .. text(priority)
  end
end
last = text(messages[room].number)
redis.call('HSET', producers, lane, last .. ' ' .. text(now))
local degraded = math.max(count(stats, amounts), write_journal(''))
return { 'OK', text(now), last, degraded }
