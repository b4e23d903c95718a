#!lua
-- send.lua: store new messages once, even if the call is repeated.
-- ROLES      producer, operator
-- KEYS[1-5]  see lib/sender_keys.lua
-- KEYS[6]    producers HASH   lane → last sequence number, ms, and (message number, id) per message kept out by it; the
--                             first lanes of a queue are in stats as `lane:<lane>`, where they are read with the counters
-- KEYS[7]    unique HASH      see lib/unique_keys.lua
-- KEYS[8]    journal STREAM
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    lane             '' for a one-shot sender, which must not repeat the call
-- ARGV[3]    sequence         number of this call on its lane
-- ARGV[4]    delay ms         '' for the queue's, or '@' and a due time in ms since 1970
-- ARGV[5-6]  ttl ms, priority '' for the queue's, 0 none; 0-9
-- ARGV[7]    n                messages, 1-1000; then n × (head `q1 <id> `, tail `[ k=v …]\n<body>`)
-- then       u                or '' for none and a caller that knows the short reply; then u × (message number 1…n, unique
--                             key, how it is held: `<ms>` until the message has ended (flag u frees it), at most that long;
--                             `=<ms>` for that long (no flag u); `~<ms>` until it is due: a later one takes its place in
--                             delayed, with its own due time, but at most that long after the first of them, 0: no limit)
-- then       maxlen, grouped  may be left out: maxlen of this call ('' none; the lower of this and the queue's counts); 1 if
--                             messages have groups, see lib/groups.lua
-- Returns {'OK', stored, now ms, degraded, then (message number, id of the holder) per message whose unique
--   key was held, then how the queue is divided, if it is: `<active> <kept> <epoch>`}, or {'DUPLICATE', 0, now ms, 0, … the
--   same} for a repeated call, or the short reply now ms: all were stored, and the rest is 0 or missing;
--   or a refusal: {'GHOST'} {'RESHARD', mark or ''} {'PAUSED'} {'FULL', stored, maxlen} {'TOOLARGE', bytes, maxsize}
--   {'BROKEN', key, type} {'ARG', name}
-- O(n) for ready, O(n log d) for delayed messages, d delayed already; O(m) more to replace one of m ≤ 1,000 due in one ms.
--- include lib/clock.lua
--- include lib/journal_entries.lua
--- include lib/lone_journal.lua
--- include lib/group_records.lua
--- include lib/lone_member.lua
--- include lib/lone_send.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/sender_keys.lua
--- include lib/journal.lua
--- include lib/sender_attributes.lua
--- include lib/stamp.lua
--- include lib/groups.lua
--- include lib/group_writes.lua
--- include lib/group_lines.lua
--- include lib/group_limits.lua
--- include lib/group_members.lua
--- include lib/packed_slots.lua
--- include lib/group_slots.lua
--- include lib/push.lua
--- include lib/unique_keys.lua

local producers, attributes, refused = KEYS[6], read_attributes()
refused = refused or broken({ stats, 'hash', ready, 'list', wake, 'list', delayed, 'zset', unique, 'hash', journal, 'stream' })
if refused then return refused end
local now = clock(ARGV[1], meta)
local lane, sequence, priority = ARGV[2], whole(ARGV[3], 0, MAX_MS), whole(ARGV[6], 0, 9)
local number = whole(ARGV[7], 1, 1000)
if not now or not sequence or not priority or not number then return { 'ARG', 'header' } end
local delay_ms = ARGV[4] == '' and attributes.delay_ms or whole(ARGV[4], 0, MAX_MS)
if string.sub(ARGV[4], 1, 1) == '@' then
  local due_ms = whole(string.sub(ARGV[4], 2), 0, MAX_MS)
  delay_ms = due_ms and math.max(due_ms - now, 0)
end
local ttl_ms = ARGV[5] == '' and attributes.ttl_ms or whole(ARGV[5], 0, MAX_MS)
if not delay_ms or not ttl_ms then return { 'ARG', 'delay or ttl' } end
local first_key = 8 + 2 * number
local keyed = ARGV[first_key] == '' and 0 or whole(ARGV[first_key], 0, number)
if not keyed then return { 'ARG', 'messages' } end
local most, grouped = ARGV[first_key + 1 + 3 * keyed], ARGV[first_key + 2 + 3 * keyed] == '1'
if grouped and most == '' then most = nil end
if not lower_maxlen(attributes, most) then return { 'ARG', 'maxlen' } end
local function id_of(message) return string.match(ARGV[6 + 2 * message], '^q1 (%S+)') end
-- A lane has its place among the counters while these are few, since others read all of them. The sign there for a lane
-- that stands among the producers is `-`.
local MAX_FIELDS = 64
local place, field = stats, 'lane:' .. lane
if lane ~= '' then
  local found = redis.call('HGET', stats, field)
  if not found or found == '-' then
    found = redis.pcall('HGET', producers, lane) or ''
    if type(found) == 'table' then return { 'BROKEN', producers, redis.call('TYPE', producers).ok } end
    local fields = found == '' and redis.pcall('HLEN', stats) -- a right that older rules do not give to senders
    if type(fields) ~= 'number' or fields >= MAX_FIELDS then place, field = producers, lane end
  end
  local last, out = string.match(found, '^(%d+) %d+(.*)$')
  last = tonumber(last)
  if last and sequence == last then
    local reply = { 'DUPLICATE', 0, text(now), 0 } -- same as the first time: the unique keys may have new holders
    for each in string.gmatch(out, '%S+') do reply[#reply + 1] = each end
    return with_shards(reply, attributes)
  end
  if last and sequence < last then return { 'GHOST' } end
end

local kept_out, outside, holds, replaced, sooner = take_keys(first_key, keyed, number, delay_ms, ttl_ms, now, id_of)
if not kept_out then return outside or { 'ARG', 'unique' } end
refused = refusal(attributes, number - #kept_out / 2 - replaced)
if refused then return refused end
local middle, items, early = stamp(now, ttl_ms, delay_ms), {}, {}
for message = 1, number do
  local head, tail = ARGV[6 + 2 * message], ARGV[7 + 2 * message]
  if attributes.maxsize > 0 then
    local bytes = #tail - (string.find(tail, '\n', 1, true) or 0)
    if bytes > attributes.maxsize then return { 'TOOLARGE', text(bytes), text(attributes.maxsize) } end
  end
  if sooner[message] then
    early[#early + 1] = { head .. stamp(now, ttl_ms, sooner[message]) .. tail, sooner[message] }
  elseif not outside[message] then
    items[#items + 1] = head .. middle .. tail
  end
end

refused = group_refusal(items, grouped, attributes)
if refused then return refused end
push(items, priority, delay_ms, attributes, now)
for _, one in ipairs(early) do push({ one[1] }, priority, one[2], attributes, now) end
write_keys(holds)
if lane ~= '' then
  if place == stats and #kept_out > 0 then -- what was kept out makes a lane long, and counters are read often
    redis.call('HSET', stats, field, '-')
    place, field = producers, lane
  end
  redis.call('HSET', place, field, table.concat({ text(sequence), text(now), unpack(kept_out) }, ' '))
end
local stored = #items + #early
local amounts = { sent = stored, stored = stored - replaced, cancelled = replaced }
local degraded = math.max(count(stats, amounts), write_journal(''))
return with_shards({ 'OK', stored, text(now), degraded, unpack(kept_out) }, attributes)
