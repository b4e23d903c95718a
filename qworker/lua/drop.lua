#!lua flags=allow-oom
-- drop.lua: delete dead letters.
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]…   entry ids        of the dead letters, 1-100
-- Returns {'OK', now ms, dropped, degraded} or {'BROKEN', key, type} {'ARG', name}
-- O(k): k entries.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/keys.lua
--- include lib/journal.lua
--- include lib/journal_entries.lua
--- include lib/letters.lua

local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(attributes.levels) or bad_letters()
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now then return { 'ARG', 'now' } end

open_journal(attributes.journal, now)
local dropped = 0
for i = 2, #ARGV do
  local entry = letter(ARGV[i])
  if entry then
    record('purged', letter_field(entry, 'envelope'), { reason = 'dead' })
    redis.call('XDEL', dead, ARGV[i])
    dropped = dropped + 1
  end
end
local degraded = math.max(count(stats, { purged = dropped }), write_journal(''))
return { 'OK', text(now), dropped, degraded }
