#!lua flags=allow-oom
-- reap.lua: take back the messages of leases whose visibility deadline is over; not while input is paused strictly.
-- KEYS       see lib/keys.lua; leases: candidates that the caller read before
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    tick ms          how often the caller comes by, 1-60000
-- Returns {'OK', now ms, leases reaped, messages, dead, suspects, set aside, lateness ms of the latest lease,
--   left (candidates still overdue, because the call ended after 1 MiB), degraded}, or {'BROKEN', key, type} {'ARG', name}
-- O(m): m messages of the leases.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/keys.lua
--- include lib/envelope.lua
--- include lib/journal.lua
--- include lib/journal_entries.lua
--- include lib/ends.lua
--- include lib/lease.lua
--- include lib/visit.lua

local MAX_BYTES = 1048576
local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(attributes.levels, true)
if refused then return refused end
local now, tick_ms = clock(ARGV[1], meta), whole(ARGV[2], 1, 60000)
if not now or not tick_ms then return { 'ARG', 'tick_ms' } end

open_journal(attributes.journal, now)
local overdue_ms = visit(stats, now, tick_ms)
local amounts, reaped, messages, aside, lateness_ms, bytes, left = { dead = 0 }, 0, 0, 0, 0, 0, 0
local suspects, rung, tombstones = 0, 0, redis.call('EXISTS', cancelled) == 1

for i = FIRST_LEASE, #KEYS do
  local key, id = KEYS[i], lease_id(KEYS[i])
  local deadline = id and tonumber(redis.call('ZSCORE', unacked, id))
  if deadline and deadline <= overdue_ms then
    if attributes.strictly_in then
      -- Nothing enters the queue, not even what was lost: its timer begins anew.
      redis.call('ZADD', unacked, text(now + attributes.visibility_ms), id)
    elseif bytes >= MAX_BYTES then
      left = left + 1
    else
      local found = redis.call('TYPE', key).ok
      if found ~= 'hash' and found ~= 'none' then
        -- Not ours, and not to stand in front of the others for ever.
        redis.call('ZADD', unacked, text(now + ASIDE_MS), id)
        aside = aside + 1
      else
        local entries, to = read_lease(key), places(attributes.levels)
        local about = { lease = id, received = received_at(id, deadline, attributes.visibility_ms) }
        for _, entry in ipairs(entries) do
          about.index = entry[3]
          take_back(entry[2], about, attributes.max_receives, tombstones, to, now, amounts)
          bytes = bytes + #entry[2]
        end
        rung = rung + write_places(to)
        redis.call('DEL', key)
        redis.call('ZREM', unacked, id)
        reaped, messages, suspects = reaped + 1, messages + #entries, suspects + #to.suspects
        lateness_ms = math.max(lateness_ms, now - deadline)
      end
    end
  end
end
amounts.unacked = -messages
amounts.timeouts = messages
amounts.set_aside = aside
local dead_now = amounts.dead
if rung > 0 and not attributes.paused_out then ring(wake, rung) end
local degraded = math.max(count(stats, amounts), write_journal(''))
return { 'OK', text(now), reaped, messages, dead_now, suspects, aside, text(lateness_ms), left, degraded }
