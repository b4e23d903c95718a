#!lua flags=allow-oom
-- hold.lua: set waiting messages aside without losing them: delayed, and never due.
-- ROLES      operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    seen             where each item was when it was read, one word each: `<level, or s for suspects>:<number of
--                             items behind it>`, or `-` if unknown; '' if unknown for all of them
-- ARGV[3]…   items            1-100 messages as they are stored; those of one list the furthest from its tail first
-- Returns {'OK', now ms, 0, then 1 per item that is held now, 0 if it no longer waits}
--   or {'BROKEN', key, type} {'ARG', name}
-- A call ends after about 100,000 entries of lists, but handles at least one item; the reply covers the handled items.
-- O(k n + k log d): k items, n entries between each and the nearer end of its list (up to three times), d delayed messages.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/keys.lua
--- include lib/attributes.lua
--- include lib/envelope.lua
--- include lib/group_records.lua
--- include lib/groups.lua
--- include lib/group_writes.lua
--- include lib/group_lines.lua
--- include lib/group_limits.lua
--- include lib/group_members.lua
--- include lib/packed_slots.lua
--- include lib/group_slots.lua
--- include lib/pick.lua

local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue({ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 }) or bad_items(3)
if refused then return refused end
local now, seen = clock(ARGV[1], meta), read_seen(ARGV[2])
if not now or not seen then return { 'ARG', 'now or seen' } end

local unseated, reply = {}, { 'OK', text(now), 0 }
for i = 3, #ARGV do
  local item = ARGV[i]
  if looked >= MAX_LOOKED then break end
  local place, side = waits_in(item, attributes.levels, seen[i - 2])
  if place then
    redis.call('ZADD', delayed, text(MAX_MS), item)
    if place == 'delayed' then unseated[#unseated + 1] = item else take_out(item, place, side) end
  end
  reply[i + 1] = place and 1 or 0
end
if has_groups then groups().leave_seats_of(unseated) end
return reply
