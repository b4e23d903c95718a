#!lua flags=allow-oom
-- reap.lua: take back the messages of expired leases, unless input is paused strictly.
-- ROLES      daemon, operator
-- KEYS       see lib/keys.lua; leases: candidates that the caller read before, in order of delivery
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    tick ms          interval of the caller's ticks, 1-60000
-- ARGV[3]    only             may be left out, or '': all; lone: leases of a single message; several: the others, latest
--                             first, so that messages return to the head in their old order; suspects need earliest first
-- Returns {'OK', now ms, leases reaped, messages, dead, suspects, set aside, lateness ms of the latest lease,
--   left (candidates still overdue, because the call ended after 1 MiB, 300 messages, or 100 that had come back before, or 50
--   leases of one message, or behind 300 others at the head), {lease ids that are overdue and not of the asked kind},
--   degraded}, or {'BROKEN', key, type} {'ARG', name}
-- O(m): m messages of the leases.
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
--- include lib/grace.lua
local MAX_BYTES, MAX_MESSAGES = 1048576, 300
local SLOW = 3 -- a message that came back before takes as long as so many on their first delivery, and so does a lease
local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(attributes.levels, true)
if refused then return refused end
local now, tick_ms, only = clock(ARGV[1], meta), whole(ARGV[2], 1, 60000), ARGV[3] or ''
if not now or not tick_ms then return { 'ARG', 'tick_ms' } end
if only ~= '' and only ~= 'lone' and only ~= 'several' then return { 'ARG', 'only' } end

open_journal(attributes.journal, now)
local overdue_ms = visit(stats, now, tick_ms)
local amounts, reaped, messages, weight, aside, lateness_ms, bytes, left = { dead = 0 }, 0, 0, 0, 0, 0, 0, 0
local suspects, rung, opened, tombstones = 0, 0, 0, redis.call('EXISTS', cancelled) == 1
local skipped = {}

-- Suspects go to the tail. Within this call, suspects of an earlier lease go before those of a later one, although it
-- comes second.
local function push_suspects(items)
  if #items == 0 then return end
  local passed = suspects > 0 and only == 'several' and redis.call('LRANGE', suspect, -suspects, -1) or {}
  if #passed > 0 then redis.call('LTRIM', suspect, 0, -#passed - 1) end
  redis.call('RPUSH', suspect, unpack(items))
  if #passed > 0 then redis.call('RPUSH', suspect, unpack(passed)) end
  suspects = suspects + #items
end

local function reap(key, id, deadline)
  local entries, to = read_lease(key), places(attributes.levels)
  local about = { lease = id, received = received_at(id, deadline, attributes.visibility_ms) }
  for _, entry in ipairs(entries) do
    about.index = entry[3]
    local fresh = take_back(entry[2], about, attributes.max_receives, tombstones, to, now, amounts)
    weight = weight + (fresh and 1 or SLOW)
    bytes = bytes + #entry[2]
  end
  push_suspects(to.suspects)
  rung, to.suspects = rung + #to.suspects, {}
  rung = rung + write_places(to, only ~= 'several' and reaped > 0)
  if has_groups then groups().vacate_entries(id, entries) end
  redis.call('DEL', key)
  redis.call('ZREM', unacked, id)
  reaped, messages, weight = reaped + 1, messages + #entries, weight + SLOW
  lateness_ms = math.max(lateness_ms, now - deadline)
end

local function look(key, id, deadline)
  if attributes.strictly_in then
    -- Nothing may enter the queue, not even lost messages: restart the timer of the lease.
    redis.call('ZADD', unacked, text(now + attributes.visibility_ms), id)
    return
  end
  local found = redis.call('TYPE', key).ok
  if found ~= 'hash' and found ~= 'none' then
    -- Not a lease of ours: move it out of the way of real leases.
    redis.call('ZADD', unacked, text(now + ASIDE_MS), id)
    aside = aside + 1
  elseif only ~= '' and (redis.call('HEXISTS', key, '0') == 1) ~= (only == 'lone') then
    skipped[#skipped + 1] = id
  elseif bytes >= MAX_BYTES or weight >= MAX_MESSAGES or not may_pass() then
    left = left + 1
  else
    reap(key, id, deadline)
  end
end

if has_groups then groups().begin() end
local first, last, step = FIRST_LEASE, #KEYS, 1
if only == 'several' then first, last, step = last, first, -1 end
for i = first, last, step do
  local id = lease_id(KEYS[i])
  local deadline = id and tonumber(redis.call('ZSCORE', unacked, id))
  if deadline and deadline <= overdue_ms then look(KEYS[i], id, deadline) end
end
amounts.unacked, amounts.timeouts, amounts.set_aside = -messages, messages, aside
local dead_now = amounts.dead
if has_groups then
  groups().finish()
  opened = groups().opened
end
if rung + opened > 0 and not attributes.paused_out then ring(wake, rung + opened) end
local degraded = math.max(count(stats, amounts), write_journal(''))
return { 'OK', text(now), reaped, messages, dead_now, suspects, aside, text(lateness_ms), left, skipped, degraded }
