#!lua flags=allow-oom
-- revoke.lua: delete the messages of leases, and notify the clients that wait for them.
-- ROLES      operator
-- KEYS       see lib/keys.lua; leases: 1-16, which are deleted
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]…   leases           ids of the leases, in their order, as they stand in unacked
-- A call ends after 1 MiB of messages, but deletes at least one lease; the others are left as they are.
-- Returns {'OK', now ms, messages deleted, degraded} or {'BROKEN', key, type} {'ARG', name}
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
--- include lib/lease.lua

local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(attributes.levels)
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now or #KEYS < FIRST_LEASE or #KEYS > FIRST_LEASE + 15 or #ARGV ~= #KEYS - FIRST_LEASE + 2 then return { 'ARG', 'leases' } end
open_journal(attributes.journal, now)
local MAX_BYTES, messages, bytes = 1048576, 0, 0
for i = FIRST_LEASE, #KEYS do
  if bytes >= MAX_BYTES then break end
  local id = ARGV[i - FIRST_LEASE + 2]
  local entries = read_lease(KEYS[i])
  for _, entry in ipairs(entries) do
    record('purged', entry[2], { reason = 'unacked' })
    end_of(entry[2], 'purged')
    bytes = bytes + #entry[2]
  end
  if has_groups then groups().vacate_entries(id, entries) end
  redis.call('DEL', KEYS[i])
  redis.call('ZREM', unacked, id)
  messages = messages + #entries
end
if has_groups and groups().opened > 0 and not attributes.paused_out then ring(wake, groups().opened) end
local degraded = math.max(count(stats, { purged = messages, stored = -messages, unacked = -messages }), write_journal(''))
return { 'OK', text(now), messages, degraded }
