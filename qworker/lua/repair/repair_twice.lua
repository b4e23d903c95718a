#!lua flags=allow-oom
-- repair_twice.lua: check whether a message is in two places at once, and leave it in the first.
-- A copy with the same body is removed; one with another body is another message, and is buried under its own new id.
-- ROLES      operator
-- KEYS       see lib/keys.lua; the leases of the locations
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    repair           1 to repair, 0 to report
-- ARGV[3-6]  location         to keep, see lib/locations.lua
-- ARGV[7-10] location         to remove
-- Returns {'OK', now ms, problem: copy, other or '' (no longer so), degraded} or {'BROKEN', key, type} {'ARG', name}
-- O(n): n items behind it in its lists.
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
--- include lib/lease.lua
--- include lib/dead_letters.lua
--- include lib/locations.lua

local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(ALL_LEVELS)
if refused then return refused end
local now, repair, first, second = clock(ARGV[1], meta), ARGV[2] == '1', location(3), location(3 + LOCATION)
if not now or not first or not second then return { 'ARG', 'now or locations' } end
open_journal(attributes.journal, now)
local amounts = {}

local kept, gone = parse(first.item), parse(second.item)
local same_list = first.list and first.key == second.key and first.item == second.item
local same_location = not same_list and first.key == second.key and first.at == second.at and first.item == second.item
local there = same_list and copies(first) == 2 or not same_list and copies(first) > 0 and copies(second) > 0
if not kept or not gone or kept.id ~= gone.id or same_location or not there then
  return { 'OK', text(now), '', 0 }
end
local function body(message) return string.sub(message.item, message.at) end
local problem = body(kept) == body(gone) and 'copy' or 'other'
if repair then
  if problem == 'other' then
    gone.id = string.sub(gone.id, 1, 50) .. '.' .. string.sub(redis.sha1hex(gone.item), 1, 10)
    record('dead', gone.item, { reason = bury(assemble(gone), 'duplicate', '', 'stood beside ' .. kept.id, now, amounts) })
  end
  clear(second, amounts)
end
return { 'OK', text(now), problem, math.max(count(stats, amounts), write_journal('')) }
