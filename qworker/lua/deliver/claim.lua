#!lua flags=allow-oom
-- claim.lua: move messages whose receivers have gone silent into a new lease.
-- The leases end as if expired, but the caller gets the messages. A suspect is claimed alone, or joins the suspects.
-- ROLES      consumer, operator
-- KEYS       see lib/keys.lua; leases: candidates, 0-64, and last the new one, an unused id
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    resume           1: the call was made before and its reply was lost: return what the lease holds; else 0
-- ARGV[3]    count            1-1000; a call also ends after 1 MiB
-- ARGV[4]    visibility ms    1-43200000 (12 h), '' for the queue's
-- ARGV[5]    caller           makes the call, for the journal: `<host>:<pid>` or ''
-- ARGV[6]…   deadline ms      of each candidate as the caller read it; a lease extended since then is skipped
-- Returns {'OK', now ms, deadline ms, degraded, {items}, {indices}, suspect 1 or 0, ended: messages that were dead, expired,
--   cancelled or made suspects instead}; indices as of settle_receive.lua
--   or a refusal: {'LEASEUSED', id} {'BROKEN', key, type} {'ARG', name}
-- O(m): m messages of the candidates.
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
--- include lib/even_records.lua
--- include lib/even_turns.lua
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
--- include lib/lease.lua
--- include lib/line.lua
--- include lib/turn_parts.lua
--- include lib/turns.lua
--- include lib/receive.lua

local MAX_CANDIDATES, FIRST_DEADLINE = 64, 6
local request = { key = KEYS[#KEYS], id = lease_id(KEYS[#KEYS]) }
local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(attributes.levels)
if refused then return refused end
local now, most, candidates = clock(ARGV[1], meta), whole(ARGV[3], 1, 1000), #KEYS - FIRST_LEASE
local visibility_ms = ARGV[4] == '' and attributes.visibility_ms or whole(ARGV[4], 1, MAX_VISIBILITY_MS)
if not now or not request.id or not most or not visibility_ms or candidates > MAX_CANDIDATES
  or #ARGV ~= FIRST_DEADLINE - 1 + candidates then
  return { 'ARG', 'request' }
end
if ARGV[2] == '1' then
  local items, deadline, indices, lone = resume(request)
  return { 'OK', text(now), text(deadline), 0, items, indices, lone, 0 }
end
if redis.call('EXISTS', request.key) == 1 then return { 'LEASEUSED', request.id } end

open_journal(attributes.journal, now)
local amounts, to, tombstones = {}, places(attributes.levels), redis.call('EXISTS', cancelled) == 1
local items, heads, gone, bytes, lone, taken = {}, {}, {}, 0, 0, 0

-- Decide about one message: claim it, end it, or move it to the suspects.
local function claim(item, id, index, received)
  local back = places(attributes.levels)
  take_back(item, { lease = id, index = index, received = received }, attributes.max_receives, tombstones, back,
    now, amounts)
  local suspected, claimed = back.suspects[1], nil
  for _, list in pairs(back.heads) do claimed = list[1] end
  if suspected and #items > 0 then table.insert(to.suspects, suspected)
  elseif suspected then claimed, lone = suspected, 1 end
  if claimed then items[#items + 1], heads[#heads + 1] = claimed, header(claimed) end
  bytes, taken = bytes + #item, taken + 1
end

-- While receiving is paused, no caller gets messages.
for i = 1, attributes.paused_out and 0 or candidates do
  local key = KEYS[FIRST_LEASE + i - 1]
  local id, fields = lease_id(key), {}
  local deadline = id and redis.call('ZSCORE', unacked, id)
  if deadline and tonumber(deadline) == tonumber(ARGV[FIRST_DEADLINE + i - 1]) then
    for _, entry in ipairs(read_lease(key)) do
      if #items >= most or bytes >= MAX_BYTES or lone == 1 then break end
      claim(entry[2], id, entry[3], received_at(id, tonumber(deadline), attributes.visibility_ms))
      fields[#fields + 1] = entry[3]
    end
    gone[#gone + 1] = { key = key, id = id, fields = fields }
  end
end

local deadline, rung = now + visibility_ms, write_places(to)
if #items > 0 then
  write_items(request.key, items)
  redis.call('ZADD', unacked, text(deadline), request.id)
end
if has_groups then groups().occupy_all(request.id, items, now) end
for _, lease in ipairs(gone) do
  if has_groups then groups().vacate_all(lease.id, lease.fields) end
  loosen(lease.key)
  take_out_of(lease.key, lease.fields)
  if redis.call('EXISTS', lease.key) == 0 then redis.call('ZREM', unacked, lease.id) end
end
if book.all and #heads > 0 then book.record_delivered(heads, request.id) end
amounts.timeouts, amounts.unacked = taken, #items - taken
amounts.claimed, amounts.received = #items, #items
if has_groups then rung = rung + groups().opened end
if rung > 0 and not attributes.paused_out then ring(wake, rung) end
local degraded = math.max(count(stats, amounts), write_journal(ARGV[5]))
return { 'OK', text(now), text(deadline), degraded, items, {}, lone, taken - #items }
