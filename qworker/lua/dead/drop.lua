#!lua flags=allow-oom
-- drop.lua: delete dead letters.
-- ROLES      operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]…   entry ids        of the dead letters, 1-100
-- With a journal, runs or groups of calls, a call ends after 1 MiB of dead letters, but handles at least one.
-- Returns {'OK', now ms, dropped, degraded, seen: entries handled} or {'BROKEN', key, type} {'ARG', name}
-- O(k): k entries.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/keys.lua
--- include lib/attributes.lua
--- include lib/envelope.lua
--- include lib/journal_entries.lua
--- include lib/journal.lua
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
--- include lib/dead_letters.lua
--- include lib/dropped.lua

local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(attributes.levels) or bad_letters()
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now then return { 'ARG', 'now' } end

open_journal(attributes.journal, now)
local MAX_BYTES = 1048576
local dropped, seen, bytes = 0, 0, 0
local told = book.on and not book.shed
-- Dead letters may be large: they are read only for the journal, or if runs or groups of calls depend on them.
local runs = runs_key()
local read = told or redis.call('EXISTS', runs) == 1 or redis.call('HEXISTS', stats, 'dead_of_groups') == 1
for i = 2, #ARGV do
  if bytes >= MAX_BYTES then break end
  local entry = read and letter(ARGV[i])
  if entry then
    local envelope = letter_field(entry, 'envelope')
    if told then record('purged', envelope, { reason = 'dead' }) end
    end_letter(envelope)
    end_run_of(envelope)
    bytes = bytes + #envelope
  end
  local gone = redis.call('XDEL', dead, ARGV[i])
  if gone == 1 and book.shed then record('purged', '') end
  dropped, seen = dropped + gone, seen + 1
end
local degraded = math.max(count(stats, { purged = dropped }), write_journal(''))
return { 'OK', text(now), dropped, degraded, seen }
