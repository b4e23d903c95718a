#!lua
-- send_chunk.lua: store a chunk of a bulk write once, however often its rows come again.
-- ROLES      operator
-- KEYS[1-5]  see lib/sender_keys.lua
-- KEYS[6]    rows HASH        row id → message id and expiry ms
-- KEYS[7]    bulk:<write id> HASH   see lib/ledger.lua
-- KEYS[8]    journal STREAM
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    stream           of the ledger; '' if the order of the rows may change
-- ARGV[3]    first            rows of the stream before this chunk
-- ARGV[4-5]  CRC              of these rows, and of these with the chunk
-- ARGV[6]    run              names this run of the write
-- ARGV[7]    kept ms          how long ledger and row ids are kept from now on
-- ARGV[8]    limit            of messages stored, 0 none
-- ARGV[9]    priority         0-9
-- ARGV[10-11] delay ms, ttl ms   '' for the queue's; ttl 0 none
-- ARGV[12]   prefix           of message ids, before the number of the row
-- ARGV[13]   n                rows, 1-1000; then n bodies
-- then       k                0 or n; then k × (delay ms, ttl ms, row id), each '' for the call's value, or no id
-- Returns {'OK', now ms, stored, degraded}, or {'DUPLICATE', now ms, 0, 0} if the chunk was stored before, or a
--   refusal: {'GAP', rows taken} {'CHANGED', rows taken} {'RESHARD', mark or ''} {'PAUSED'} {'FULL', stored, limit}
--   {'TOOLARGE', bytes, maxsize, row} {'BROKEN', key, type} {'ARG', name}
-- O(n) for ready, O(n log d) for delayed messages, d being delayed already.
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
--- include lib/ledger.lua
--- include lib/rows.lua

local rows, ledger = KEYS[6], KEYS[7]
local refused = broken({ ready, 'list', delayed, 'zset', wake, 'list', meta, 'hash', stats, 'hash',
  rows, 'hash', ledger, 'hash', journal, 'stream' })
if refused then return refused end
local now, stream, first, number = clock(ARGV[1], meta), ARGV[2], whole(ARGV[3], 0, MAX_MS), whole(ARGV[13], 1, 1000)
local crc_before, crc_after, run, prefix = ARGV[4], ARGV[5], ARGV[6], ARGV[12]
local kept_ms, limit, priority = whole(ARGV[7], 1, MAX_MS), whole(ARGV[8], 0, MAX_MS), whole(ARGV[9], 0, 9)
if not now or not first or not number or not kept_ms or not limit or not priority then return { 'ARG', 'header' } end
local attributes = read_attributes()
local delay_ms = ARGV[10] == '' and attributes.delay_ms or whole(ARGV[10], 0, MAX_MS)
local ttl_ms = ARGV[11] == '' and attributes.ttl_ms or whole(ARGV[11], 0, MAX_MS)
if not delay_ms or not ttl_ms then return { 'ARG', 'delay or ttl' } end
local worded = whole(ARGV[14 + number], 0, number)
if not worded or worded ~= 0 and worded ~= number or #ARGV ~= 14 + number + 3 * worded then return { 'ARG', 'rows' } end
local stands = stream ~= '' and standing(ledger, stream, first, number, crc_before, crc_after)
if stands and stands[1] == 'DUPLICATE' then return { 'DUPLICATE', text(now), 0, 0 } end
if stands then return stands end
-- The delay, ttl and id of a row; nil if malformed.
local function words_of(row)
  local at = 14 + number + 3 * (row - 1)
  local row_delay_ms = ARGV[at + 1] == '' and delay_ms or whole(ARGV[at + 1], 0, MAX_MS)
  local row_ttl_ms = ARGV[at + 2] == '' and ttl_ms or whole(ARGV[at + 2], 0, MAX_MS)
  return row_delay_ms, row_ttl_ms, ARGV[at + 3] ~= '' and ARGV[at + 3]
end

local function is_held(row_id)
  local until_ms = string.match(redis.call('HGET', rows, row_id) or '', ' (%d+)$')
  return until_ms and tonumber(until_ms) > now
end

-- Collect messages by their delay. Rows without values of their own take a shorter way, in half the time.
local delays, fresh, held, flags = {}, 0, {}, priority > 0 and ' p=' .. text(priority) or ''
local start, maxsize = 'q1 ' .. prefix, attributes.maxsize
for row = 1, maxsize > 0 and number or 0 do
  local bytes = #ARGV[13 + row]
  if bytes > maxsize then return { 'TOOLARGE', text(bytes), text(maxsize), text(row) } end
end
if worded == 0 then
  local middle = ' ' .. stamp(now, ttl_ms, delay_ms) .. flags .. '\n'
  delays[delay_ms], fresh = envelopes(13, number, start, first, middle), number
end
for row = 1, worded do
  local row_delay_ms, row_ttl_ms, row_id = words_of(row)
  if not row_delay_ms or not row_ttl_ms then return { 'ARG', 'delay or ttl of a row' } end
  if not row_id or not held[row_id] and not is_held(row_id) then
    local id = string.format('%010d', first + row)
    if row_id then held[row_id] = prefix .. id end
    local middle = ' ' .. stamp(now, row_ttl_ms, row_delay_ms) .. flags .. '\n'
    delays[row_delay_ms] = delays[row_delay_ms] or {}
    table.insert(delays[row_delay_ms], start .. id .. middle .. ARGV[13 + row])
    fresh = fresh + 1
  end
end
refused = refusal(attributes, fresh)
if refused then return refused end
local stored = limit > 0 and fresh > 0 and tonumber(redis.call('HGET', stats, 'stored')) or 0
if limit > 0 and stored + fresh > limit then return { 'FULL', text(stored), text(limit) } end

attributes.ungrouped = true
for group_delay_ms, items in pairs(delays) do push(items, priority, group_delay_ms, attributes, now) end
for row_id, id in pairs(held) do
  redis.call('HSET', rows, row_id, id .. ' ' .. text(math.min(now + kept_ms, MAX_MS)))
end
note(ledger, stream, first + number, crc_after, run, fresh, kept_ms)
local degraded = math.max(count(stats, { sent = fresh, stored = fresh }), write_journal(''))
return { 'OK', text(now), fresh, degraded }
