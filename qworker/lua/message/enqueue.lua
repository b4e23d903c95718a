#!lua flags=allow-oom
-- enqueue.lua: move delayed and held messages to the tail of ready now.
-- ROLES      operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]…   items            1-100 messages as they are stored
-- Returns {'OK', now ms, degraded, 1 per item that was moved, 0 if it is no longer delayed}
--   or {'BROKEN', key, type} {'ARG', name}
-- O(k log d): k items of d delayed.
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
--- include lib/pick.lua

local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(ALL_LEVELS) or bad_items(2)
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now then return { 'ARG', 'now' } end

open_journal(attributes.journal, now)
local to, gone, taken, reply = places({ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 }), {}, {}, { 'OK', text(now), 0 }
local levels = redis.call('HGET', meta, 'levels') or ''
local before = levels
for i = 2, #ARGV do
  local item = ARGV[i]
  local found = not taken[item] and tonumber(redis.call('ZSCORE', delayed, item))
  -- A member that waits in its group is not delayed.
  if found and has_groups and groups().is_seat(found) then found = nil end
  if found then
    local message, number = parse(item), level(item)
    if book.all then record('promoted', item) end
    ready_from(message, now)
    local back = assemble(message)
    -- A member of a group stays in the set: with the same text it would go with the old one.
    if back == item then
      ready_from(message, now + 1)
      back = assemble(message)
    end
    put(to, to.tails, number, back)
    if number > 0 and not string.find(levels, tostring(number), 1, true) then levels = levels .. tostring(number) end
    gone[#gone + 1], taken[item] = item, true
  end
  reply[i + 2] = found and 1 or 0
end
if levels ~= before then redis.call('HSET', meta, 'levels', levels) end
local moved = write_places(to)
if moved > 0 then redis.call('ZREM', delayed, unpack(gone)) end
if moved > 0 and not attributes.paused_out then ring(wake, moved) end
reply[3] = math.max(count(stats, { promoted = moved }), write_journal(''))
return reply
