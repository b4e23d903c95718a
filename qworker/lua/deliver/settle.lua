#!lua flags=allow-oom
-- settle.lua: ack, nack, release, bury or discard received messages; report which outcomes counted.
-- ROLES      consumer, operator
-- KEYS       see lib/keys.lua; leases: those settled
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    who              makes the call, for the journal: `<host>:<pid>` or ''
-- ARGV[3]…   outcomes         see lib/outcomes.lua
-- Returns {'OK', now ms, degraded, {settled per lease}, {1 or 0 per outcome: uniques, acks, others of each lease}}
--   or a refusal: {'BROKEN', key, type} {'ARG', name}. A stale outcome changes nothing and is counted.
-- O(s): s outcomes.
--- include lib/clock.lua
--- include lib/lone_acks.lua
--- include lib/lone_settle.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/keys.lua
--- include lib/attributes.lua
--- include lib/envelope.lua
--- include lib/journal.lua
--- include lib/journal_entries.lua
--- include lib/order.lua
--- include lib/requeue.lua
--- include lib/lease.lua
--- include lib/outcomes.lua
--- include lib/requeue_outcomes.lua
--- include lib/settle.lua

local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(attributes.levels)
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now then return { 'ARG', 'now' } end
local leases, problem = read_outcomes(3)
if not leases then return { 'ARG', problem } end

open_journal(attributes.journal, now)
local amounts, results = {}, {}
local settled, rung = settle(leases, attributes, results, now, amounts)
if rung > 0 and not attributes.paused_out then ring(wake, rung) end
local degraded = math.max(count(stats, amounts), write_journal(ARGV[2]))
return { 'OK', text(now), degraded, settled, results }
