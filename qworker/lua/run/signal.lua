#!lua
-- signal.lua: give a run a signal, and wake it if it waits for that.
-- Of a signal that is given twice the first value stays, unless the caller names the dead letter of the run: nothing has read
-- what it replaces since. A full server refuses a signal before anything is written. Signals have at most 64 MiB in all, which
-- `@given` of the run counts; the one that it waits for is taken in any case.
-- ROLES      consumer, operator
-- KEYS       see lib/keys.lua; then the run HASH in place of a lease, and runs ZSET
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    message id
-- ARGV[3]    signal           `!<name>`
-- ARGV[4]    value            see docs/protocol.md
-- ARGV[5]    known            '1': the caller has seen the message, which may not have recorded anything yet; or ''
-- ARGV[6]    dead letter      '', or the entry of the run's: while it is there, the value replaces one that was given before
-- Returns {'OK', now ms, degraded, the value given before or '', 1 if it was woken, else 0}, {'UNKNOWN'} {'ENDED'}, or a
--   refusal: {'FULLRUN', bytes} {'BROKEN', key, type} {'ARG', name}
-- O(log d): d delayed.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/keys.lua
--- include lib/attributes.lua
--- include lib/envelope.lua
--- include lib/journal_entries.lua
--- include lib/journal.lua
--- include lib/order.lua
--- include lib/group_records.lua
--- include lib/groups.lua
--- include lib/group_writes.lua
--- include lib/group_lines.lua
--- include lib/group_limits.lua
--- include lib/group_members.lua
--- include lib/packed_slots.lua
--- include lib/group_slots.lua
--- include lib/outbox.lua
--- include lib/ends.lua
--- include lib/requeue.lua
--- include lib/wake_run.lua
--- include lib/dead_letters.lua
--- include lib/rights.lua

local MAX_VALUE, MAX_GIVEN = 1114112, 67108864 -- 1 MiB and what encryption adds · 64 MiB
local attributes, refused = read_attributes()
if refused then return refused end
local run, runs = KEYS[FIRST_LEASE], KEYS[FIRST_LEASE + 1]
refused = broken_queue(ALL_LEVELS, true) or broken({ run, 'hash', runs, 'zset' })
if refused then return refused end
local now, id, signal, value = clock(ARGV[1], meta), ARGV[2], ARGV[3], ARGV[4]
if not now or not string.find(id, '^[%w._-]+$') or run ~= run_key(id) then return { 'ARG', 'message id' } end
if not string.find(signal, '^![%w_.][^%s]*$') or #signal > 128 then return { 'ARG', 'signal' } end
if not value or value == '' or #value > MAX_VALUE then return { 'ARG', 'value' } end
if ARGV[6] ~= '' and not is_letter_id(ARGV[6] or '-') then return { 'ARG', 'dead letter' } end
-- A call that stopped midway would leave the run half woken, and no other call would wake it.
refused = denied('runs', 'HSET', run, 'h', '') or denied('runs', 'HDEL', run, 'h') or denied('messages', 'RPUSH', ready(0), '')
  or denied('messages', 'ZREM', delayed, '')
if refused then return refused end
local is_live = redis.call('ZSCORE', runs, id)
if not is_live and redis.call('EXISTS', run) == 1 then return { 'ENDED' } end
if not is_live and ARGV[5] ~= '1' then return { 'UNKNOWN' } end
local found = redis.call('HMGET', run, signal, '@given', '@waits')
local given = (tonumber(found[2]) or 0) + #signal + #value
local buried = ARGV[6] ~= '' and letter(ARGV[6])
local dead_run = buried and parse(letter_field(buried, 'envelope'))
local replaced = dead_run and dead_run.id == id and found[1] and string.match(found[1], '^ t=%d+(.*)$')
if replaced then
  given = given - #signal - #replaced
  found[1] = false
end
if not found[1] and found[3] ~= signal and given > MAX_GIVEN then return { 'FULLRUN', text(given) } end
if not is_live then redis.call('ZADD', runs, text(now), id) end
if not found[1] then redis.call('HSET', run, '@given', text(given)) end
if replaced then redis.call('HDEL', run, signal) end

open_journal(attributes.journal, now)
local to = places(attributes.levels)
local before, woken = wake_run(run, signal, value, to, now)
if woken then
  write_places(to)
  redis.call('ZREM', delayed, woken)
  if has_groups then groups().leave_seats_of({ woken }) end
  if not attributes.paused_out then ring(wake, 1) end
end
local degraded = math.max(count(stats, { promoted = woken and 1 or 0 }), write_journal(''))
return { 'OK', text(now), degraded, before, woken and 1 or 0 }
