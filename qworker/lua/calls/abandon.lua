#!lua flags=allow-oom
-- abandon.lua: end groups of calls before their members have: their callbacks are not sent, and no member is counted any more.
-- ROLES      consumer, operator
-- KEYS       see lib/keys.lua; no leases. The keys of groups are made here, see join.lua
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    words            purged or cancelled: how the callback has ended, for waits for its result; '' for no
--                             announcement. A run that waits for a cancelled group continues, with what has ended
-- ARGV[3]…   group ids        1-100
-- Returns {'OK', now ms, 1 per group that was waiting for members, else 0} or {'BROKEN', key, type} {'ARG', name}
-- O(g + m): g groups of m members.
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

local WORDS, MAX_GROUPS_OF_CALLS, TOMBSTONE_MS = { [''] = true, purged = true, cancelled = true }, 100, 604800000
local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(ALL_LEVELS) or broken({ joins.index(), 'zset' })
if refused then return refused end
local now, words = clock(ARGV[1], meta), ARGV[2]
if not now or not WORDS[words] then return { 'ARG', 'words' } end
if #ARGV < 3 or #ARGV > 2 + MAX_GROUPS_OF_CALLS then return { 'ARG', 'group ids' } end

-- A call that stopped midway would leave the run half woken, and no other call would wake it.
refused = denied('groups of calls', 'HSET', joins.key('0'), 'h', '') or denied('groups of calls', 'HDEL', joins.key('0'), 'h')
  or denied('groups of calls', 'ZREM', joins.index(), '') or denied('messages', 'RPUSH', ready(0), '')
if refused then return refused end

-- The run no longer ends the group when it ends itself.
local function leave_run(target, id)
  local run = run_key(target[1])
  local left = string.gsub((redis.call('HGET', run, '@joins') or '') .. ' ', ' ' .. string.gsub(id, '%p', '%%%0') .. ' ', ' ')
  if redis.call('EXISTS', run) == 1 then redis.call('HSET', run, '@joins', left) end
end

-- What was cancelled is known for as long as tombstones of its members may stand: a cancel may be repeated, and another group
-- of this id would meet them.
local function remember(join, size, queues)
  redis.call('HSET', join, '@size', size, '@sent', size, '@over', text(now), '@queues', queues)
  if redis.call('PTTL', join) < TOMBSTONE_MS then redis.call('PEXPIRE', join, text(TOMBSTONE_MS)) end
end

open_journal(attributes.journal, now)
local to, amounts, woken, reply = places(attributes.levels), {}, {}, { 'OK', text(now) }
for i = 3, #ARGV do
  local id = ARGV[i]
  local join = joins.key(id)
  local found = redis.pcall('HMGET', join, '@size', '@over', '@run', '@queues')
  local waits, target = not found.err and found[1] and not found[2], not found.err and joins.list(found[3])
  if waits and words ~= '' then tell_callback(join, words, now) end
  if words == 'cancelled' and (target or not waits) then
    -- One that is decided stays as it is: its callback needs the values.
    if waits then end_early(id, to, woken, now, amounts) end
  else
    if target then leave_run(target, id) end
    joins.finish(id, words == 'cancelled' and words or 'abandoned')
    if words == 'cancelled' then remember(join, found[1], found[4] or '') end
  end
  reply[#reply + 1] = waits and 1 or 0
end
local rung = write_places(to)
if #woken > 0 then redis.call('ZREM', delayed, unpack(woken)) end
if has_groups then groups().leave_seats_of(woken) end
if rung > 0 and not attributes.paused_out then ring(wake, rung) end
count(stats, amounts)
write_journal('')
return reply
