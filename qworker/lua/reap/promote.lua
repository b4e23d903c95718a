#!lua flags=allow-oom
-- promote.lua: move delayed messages that are due to the tail of ready.
-- ROLES      daemon, operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    limit            messages, 1-5000; a call also ends after 1 MiB
-- Returns {'OK', now ms, moved, ended (expired or cancelled), next due ms ('' if nothing is delayed; if
--   more are due, that of the first moved), lateness ms of the first, degraded}, or {'BROKEN', key, type} {'ARG', name}
-- O(k log d): k moved of d delayed.
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
--- include lib/tombstones.lua

local MAX_BYTES = 1048576
local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(ALL_LEVELS)
if refused then return refused end
local now, limit = clock(ARGV[1], meta), whole(ARGV[2], 1, 5000)
if not now or not limit then return { 'ARG', 'limit' } end

open_journal(attributes.journal, now)
local amounts, to = { promoted = 0, stored = 0 }, places({ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 })
local tombstones = redis.call('EXISTS', cancelled) == 1
local seen, ended, bytes, used = 0, 0, 0, {}
local members, placed = {}, 0
local first_due

-- The next due messages. The first is read alone, with its due time.
local function read_due()
  local number = math.min(chunk_size(seen, bytes, MAX_BYTES - bytes), limit - seen)
  if seen > 0 then return redis.call('ZRANGE', delayed, '-inf', text(now), 'BYSCORE', 'LIMIT', seen, number) end
  local first = redis.call('ZRANGE', delayed, '-inf', text(now), 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  first_due = tonumber(first[2])
  return { first[1] }
end

while seen < limit and bytes < MAX_BYTES do
  local chunk = read_due()
  if #chunk == 0 then break end
  local marked = tombstones and marked_in(chunk, cancelled)
  for i = 1, #chunk do
    local item = chunk[i]
    if bytes >= MAX_BYTES then break end
    local head = kind(item) == 'own' and header(item)
    local ending = head and over(head, now, marked and marked[i])
    if ending and parse(item) then
      record(ending, item)
      end_of(item, ending)
      amounts[ending] = (amounts[ending] or 0) + 1
      amounts.stored = amounts.stored - 1
      ended = ended + 1
    else
      local name = has_groups and group_of(item)
      if name then
        members[#members + 1] = { item, name }
      else
        local number = head and level_in(head) or 0
        used[number] = true
        put(to, to.tails, number, item)
      end
      if book.all then record('promoted', item) end
    end
    bytes = bytes + #item
    seen = seen + 1
  end
end
local levels = redis.call('HGET', meta, 'levels') or ''
local before = levels
for number in pairs(used) do
  if number > 0 and not string.find(levels, tostring(number), 1, true) then levels = levels .. tostring(number) end
end
if levels ~= before then redis.call('HSET', meta, 'levels', levels) end
-- A member stays in the set, behind all that are due.
for _, member in ipairs(members) do
  if groups().place(member[1], member[2], false) then placed = placed + 1 else put(to, to.tails, 0, member[1]) end
end
local moved = write_places(to) + placed
if seen > placed then redis.call('ZREMRANGEBYRANK', delayed, 0, seen - placed - 1) end
amounts.promoted = moved
local rung = moved
if has_groups then rung = math.max(moved, moved - placed + groups().opened) end
if rung > 0 and not attributes.paused_out then ring(wake, rung) end
local degraded = math.max(count(stats, amounts), write_journal(''))
-- If a bound left due messages behind, the exact time does not matter, which saves reading a body.
local left = (seen >= limit or bytes >= MAX_BYTES) and redis.call('ZCOUNT', delayed, '-inf', text(now)) > 0
local next_due = left and first_due or tonumber(redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2])
return { 'OK', text(now), moved, ended, next_due and text(next_due) or '', text(math.max(0, now - (first_due or now))),
  degraded }
