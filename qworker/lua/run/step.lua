#!lua
-- step.lua: record steps of a run, if its delivery still holds the lease.
-- Of a step that is recorded twice the first value stays. A full server refuses it (OOM) before anything is written.
-- ROLES      consumer
-- KEYS[1]    meta HASH
-- KEYS[2]    runs ZSET        message id → when its first step was recorded, ms: runs that have not ended
-- KEYS[3]    run HASH         step → value, see docs/protocol.md
-- KEYS[4]    lease HASH
-- KEYS[5-6]  stats HASH, journal STREAM
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    message id
-- ARGV[3]    index            of the message in the lease
-- ARGV[4]    keep ms          '', or of a message that lacks the flags of a run: 1-2592000000, for which its state is kept
--                             after its end
-- ARGV[5]    progress         '1': failures before this step no longer count against max receives; '' if there were none
-- ARGV[6]…   steps            1-100 × (name, value)
-- Returns {'OK', now ms, per step '' if it is recorded now, or the value recorded before}, {'GONE'} if the lease does not
--   hold the message, or a refusal: {'FULLRUN', bytes} {'BROKEN', key, type} {'ARG', name}
-- O(k + n): k steps; n messages of the lease the first time.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/envelope.lua
--- include lib/lease.lua
--- include lib/progress.lua

local meta, stats, journal = KEYS[1], KEYS[5], KEYS[6]
--- include lib/journal_entries.lua
--- include lib/journal.lua
--- include lib/journal_mode.lua

local runs, run, lease, id, index = KEYS[2], KEYS[3], KEYS[4], ARGV[2], ARGV[3]
local now, keep_ms = clock(ARGV[1], meta), ARGV[4] ~= '' and whole(ARGV[4], 1, MAX_KEEP_MS)
local lease_name = string.match(lease, '}:lease:([%w._-]+)$')
if not now or not lease_name or not string.find(id, '^[%w._-]+$') or string.sub(run, -#id - 5) ~= ':run:' .. id then
  return { 'ARG', 'message id' }
end
if keep_ms == nil then return { 'ARG', 'keep ms' } end
local bytes, names = 0, { '@bytes' }
for i = 6, #ARGV, 2 do
  local value = ARGV[i + 1]
  if not value or value == '' or #value > MAX_VALUE or not string.find(ARGV[i], '^!?[%w_.][^%s]*$') or #ARGV[i] > 128 then
    return { 'ARG', 'step' }
  end
  names[#names + 1], bytes = ARGV[i], bytes + #ARGV[i] + #value
end
if #names < 2 or #names > 101 then return { 'ARG', 'steps' } end
local found, held, refused = read_run(run, runs, lease, id, index, names)
if refused then return refused end
if not held then return { 'GONE' } end
local total = tonumber(found[1] or 0) + bytes
if total > MAX_RUN then return { 'FULLRUN', text(total) } end

local reply, written, values = { 'OK', text(now) }, {}, {}
bytes = 0
for i = 2, #names do
  local value = ARGV[3 + 2 * i]
  local older = found[i]
  for j = 1, #written, 2 do
    if written[j] == names[i] then older = written[j + 1] end
  end
  if not older then
    written[#written + 1], written[#written + 2] = names[i], ' t=' .. text(now) .. value
    bytes, values[names[i]] = bytes + #names[i] + #value, value
  end
  reply[1 + i] = older or ''
end
if #written == 0 then return reply end
refused = open_journal_of(now)
if refused then return refused end
local header = book.on and book.header_of(redis.call('HGET', lease, index), lease_name, index)
if (keep_ms or ARGV[5] == '1') and not advance(lease, lease_name, index, id, keep_ms, now) then
  return { 'ARG', 'message id' }
end
if not found[1] then redis.call('ZADD', runs, 'NX', text(now), id) end
redis.call('HSET', run, '@bytes', text(tonumber(found[1] or 0) + bytes), unpack(written))
for i = 1, book.on and #written or 0, 2 do book.record_step(header, written[i], values[written[i]]) end
write_journal('')
return reply
