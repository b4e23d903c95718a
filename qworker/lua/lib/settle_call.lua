-- The call of settle.lua and conclude.lua.
local attributes, refused = read_attributes()
if refused then return refused end
-- What a handler has done counts, whether or not others hear of it at once.
refused = broken_queue(attributes.levels, false, true)
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now then return { 'ARG', 'now' } end
local leases, problem = read_outcomes(3)
if not leases then return problem.err and problem or { 'ARG', problem } end

open_journal(attributes.journal, now)
local amounts, results = {}, {}
local settled, rung = settle(leases, attributes, results, now, amounts)
if rung > 0 and not attributes.paused_out then ring(wake, rung) end
local degraded = math.max(count(stats, amounts), write_journal(ARGV[2]))
return { 'OK', text(now), degraded, settled, results }
