#!lua flags=allow-oom
-- repair_item.lua: check an item in its place, and repair it.
-- ROLES      operator
-- KEYS       see lib/keys.lua; the lease, if the item is in one
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    repair           1 to repair, 0 to report
-- ARGV[3-6]  location         see lib/locations.lua
-- Returns {'OK', now ms, problem, degraded} or {'BROKEN', key, type} {'ARG', name}; problem:
--   foreign: not a message that a consumer can receive; it is buried with its bytes
--   score: delayed until a time that no call writes; it becomes due now
--   letter: a dead letter without an envelope; it gets one from the fields of its entry · '' none (any more)
-- O(n): n items behind it in its list.
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
local now, repair, one = clock(ARGV[1], meta), ARGV[2] == '1', location(3)
if not now or not one then return { 'ARG', 'now or location' } end
open_journal(attributes.journal, now)
local amounts = {}

local function answer(problem)
  return { 'OK', text(now), problem, math.max(count(stats, amounts), write_journal('')) }
end

if one.place == 'dead' then
  local entry = letter(one.at)
  if not entry or #entry[2] > 128 then return answer('') end
  for i = 1, #entry[2], 2 do
    if entry[2][i] == 'envelope' then return answer('') end
  end
  if repair then
    -- It was already counted as dead.
    bury(table.concat(entry[2], ' '), 'foreign', '', 'entry ' .. one.at .. ' had no envelope', now, {})
    redis.call('XDEL', dead, one.at)
  end
  return answer('letter')
end
if copies(one) == 0 then return answer('') end
local what = kind(one.item)
if what == 'foreign' or what == 'own' and not parse(one.item) then
  if repair then
    bury_foreign(one.item, {}, now, amounts)
    clear(one, amounts)
  end
  return answer('foreign')
end
local due_ms = one.place == 'delayed' and tonumber(redis.call('ZSCORE', delayed, one.item))
if due_ms and (due_ms < 0 or due_ms > MAX_MS) then
  if repair then redis.call('ZADD', delayed, text(now), one.item) end
  return answer('score')
end
return answer('')
