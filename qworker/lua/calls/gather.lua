#!lua
-- gather.lua: count the ends of members of groups of calls; the one that decides sends the callback, or wakes the run.
-- ROLES      consumer, daemon, operator
-- KEYS       see lib/keys.lua; then producers HASH in place of a lease. The keys of groups are made here, see join.lua
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    lane             of the outbox; '' of a repair, whose numbers are not kept
-- ARGV[3]    n                ends, 1-1000; then n × (number, greater than the one before it, group id, number of the member, words:
--                             how it has ended, as of a result; or '': a dead letter waits again; or `rest <part> …`: the
--                             group cancels messages of this queue, whose ids are `<group id>.<part>`)
-- In join: 0 … → these words. The first end of a member counts, except that of a dead letter, which can be redriven:
--   all         the callback is sent when each member has ended
--   successes   when each has succeeded; a dead letter is waited for. The group ends without it when another end cannot change
--   first       when the first one has succeeded; the group ends without it when none can any more. With @rest in
--               join, see join.lua, the queues of members that have not ended get an entry with the words rest
-- @left is the number of members that are waited for, @dead ` <member> …` the dead ones, @told the member whose end was
-- reported to clients that wait for the callback, @bytes the size of the words, @over when it was decided, in ms.
-- Returns {'OK', now ms, number of the last end, degraded, decided: groups that sent their callback or ended without it, 1 if
--   this queue has outboxes, else 0}, or {'BROKEN', key, type} {'ARG', name}
-- O(n + m): n ends, m members of groups that cancel the rest.
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
--- include lib/stamp.lua
--- include lib/awaited.lua
--- include lib/new_messages.lua
--- include lib/wake_run.lua
--- include lib/joins.lua
--- include lib/rights.lua

local attributes, refused = read_attributes()
if refused then return refused end
local producers = KEYS[FIRST_LEASE]
refused = broken_queue(ALL_LEVELS, true) or broken({ producers, 'hash', joins.index(), 'zset' })
if refused then return refused end
local now, lane, number = clock(ARGV[1], meta), ARGV[2], whole(ARGV[3], 1, 1000)
if not now or lane ~= '' and not string.find(lane, '^out%-%x+$') or not number or #ARGV ~= 3 + 4 * number then
  return { 'ARG', 'header' }
end
local before = 0
for at = 4, #ARGV, 4 do
  before = whole(ARGV[at], before + 1, MAX_MS)
  if not before or not string.find(ARGV[at + 1], '^[%w._-]+$') or not whole(ARGV[at + 2], 0, MAX_MS) or #ARGV[at + 3] > MAX_RESULT then
    return { 'ARG', 'end' }
  end
end

-- A call that stopped midway would leave an end half counted: no other call counts it, and its callback is never sent.
local a_join = joins.key('0')
refused = denied('groups of calls', 'HSET', a_join, 'h', '') or denied('groups of calls', 'HDEL', a_join, 'h')
  or denied('groups of calls', 'ZREM', joins.index(), '') or denied('messages', 'RPUSH', ready(0), '')
  or denied('messages', 'ZADD', delayed, '0', '')
if refused then return refused end
open_journal(attributes.journal, now)
local last = lane ~= '' and tonumber(string.match(redis.call('HGET', producers, lane) or '', '^%d+')) or 0
local to, amounts, woken, decided = places(attributes.levels), {}, {}, 0
for at = 4, #ARGV, 4 do
  if tonumber(ARGV[at]) > last then
    decided = decided + count_end(ARGV[at + 1], text(tonumber(ARGV[at + 2])), ARGV[at + 3], to, woken, now, amounts)
  end
end
local rung = write_places(to)
if #woken > 0 then redis.call('ZREM', delayed, unpack(woken)) end
if has_groups then groups().leave_seats_of(woken) end
if lane ~= '' then redis.call('HSET', producers, lane, text(math.max(before, last)) .. ' ' .. text(now)) end
if rung > 0 and not attributes.paused_out then ring(wake, rung) end
local degraded = math.max(count(stats, amounts), write_journal(''))
local outs = outbox('')
return { 'OK', text(now), text(math.max(before, last)), degraded, decided, redis.call('EXISTS', outs) }
