#!lua flags=allow-oom
-- settle_receive.lua: settle received messages and receive the next batch, in one round trip.
-- ROLES      consumer, operator
-- KEYS       see lib/keys.lua; leases: those settled, and last the new one
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    resume           1: the call was made before with this new lease and its reply was lost:
--                             settle again, return what the lease holds, never create it; else 0, or '' or
--                             `each` for a caller that knows the short reply: the messages get a field of their
--                             own in the lease with `each`, as they will be settled one by one
-- ARGV[3]    count            0-1000; 0 settles only; a queue with groups gives 500 at most
-- ARGV[4]    visibility ms    1-43200000 (12 h), '' for the queue's
-- ARGV[5]    suspects         0 never · 1 if nothing else is ready · 2 first
-- ARGV[6]    caller           makes the call, for the journal: `<host>:<pid>` or ''
-- ARGV[7]…   outcomes         see lib/outcomes.lua
-- Returns {'OK', now ms, deadline ms, ready left, hint ms, suspect 1 or 0, degraded, {settled per lease}, {items}, {indices},
--   suspects waiting, journal 1 or 0, and of a queue with groups the ms until one may run, or 0}; indices is empty unless
--   resumed, and means '0' for one item, '1' … 'n' for several; or the short reply {'SHORT', now ms, deadline ms, ready left,
--   hint ms, degraded, settled per lease with spaces between, '' for 1 each, items …}, where the rest is 0 or empty; with
--   'NOTED' in place of 'SHORT', the journal is 1, and with 'TURNS' the queue has groups;
--   or a refusal: {'LEASEUSED', id} {'BROKEN', key, type} {'ARG', name}. hint ms: see lib/receive.lua.
-- O(s + n): s outcomes, n messages received.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/journal_entries.lua
--- include lib/group_records.lua
--- include lib/even_records.lua
--- include lib/even_turns.lua
--- include lib/tombstones.lua
do
--- include lib/lone_journal.lua
--- include lib/lone_acks.lua
--- include lib/lone_items.lua
--- include lib/lone_turns.lua
--- include lib/lone_receive.lua
end
--- include lib/counters.lua
--- include lib/keys.lua
--- include lib/attributes.lua
--- include lib/envelope.lua
--- include lib/journal.lua
--- include lib/order.lua
--- include lib/groups.lua
--- include lib/group_writes.lua
--- include lib/group_lines.lua
--- include lib/group_limits.lua
--- include lib/group_members.lua
--- include lib/packed_slots.lua
--- include lib/group_slots.lua
--- include lib/group_waits.lua
--- include lib/outbox.lua
--- include lib/ends.lua
--- include lib/requeue.lua
--- include lib/lease.lua
--- include lib/stamp.lua
--- include lib/rights.lua
--- include lib/awaited.lua
--- include lib/new_messages.lua
--- include lib/effects.lua
--- include lib/outcomes.lua
--- include lib/requeue_outcomes.lua
--- include lib/settle.lua
--- include lib/line.lua
--- include lib/turn_parts.lua
--- include lib/turns.lua
--- include lib/receive.lua

local request = {
  key = KEYS[#KEYS], id = lease_id(KEYS[#KEYS]), count = whole(ARGV[3], 0, 1000),
  suspects = whole(ARGV[5], 0, 2),
}
local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(attributes.levels)
if refused then return refused end
local now = clock(ARGV[1], meta)
request.visibility_ms = ARGV[4] == '' and attributes.visibility_ms or whole(ARGV[4], 1, MAX_VISIBILITY_MS)
if not now or not request.id or not request.count or not request.suspects or not request.visibility_ms then
  return { 'ARG', 'request' }
end
local leases, problem = read_outcomes(7)
if not leases then return problem.err and problem or { 'ARG', problem } end
local resumed = ARGV[2] == '1'
if not resumed and request.count > 0 and redis.call('EXISTS', request.key) == 1 then
  return { 'LEASEUSED', request.id }
end

open_journal(attributes.journal, now)
local amounts = {}
local settled, rung = settle(leases, attributes, nil, now, amounts)
local items, deadline, left, hint_ms, lone, indices = {}, 0, 0, -2, 0, {}
local waiting = rung
if resumed then
  items, deadline, indices, lone = resume(request)
elseif request.count > 0 then
  items, deadline, left, hint_ms, lone = receive(request, attributes, attributes.levels, now, amounts)
  -- A suspect that this call returned wakes consumers that may take it, even if this caller may not.
  waiting = left == 0 and rung > 0 and redis.call('LLEN', suspect) > 0 and rung or left
end
local suspects_left = suspects_left(now)
if not attributes.paused_out then
  if waiting > 0 then
    ring(wake, waiting)
  elseif ARGV[6] ~= '' and #items > 0 and not resumed and suspects_left == 0 and not amounts.unsupported then
    -- Nothing is left: tokens for messages already taken would wake workers in vain, one after another. Without
    -- waiting workers, the next send rings again.
    redis.pcall('DEL', wake)
  end
end
local degraded = math.max(count(stats, amounts), write_journal(ARGV[6]))
local reply = { 'OK', text(now), text(deadline), left, text(hint_ms), lone, degraded, settled, items, indices,
  suspects_left, book.on and not book.shed and 1 or 0 }
if has_groups then
  local until_ms = groups().next_later()
  reply[13] = until_ms and math.min(math.max(1, until_ms - now), MAX_VISIBILITY_MS) or 0
end
return reply
