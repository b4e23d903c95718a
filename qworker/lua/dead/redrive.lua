#!lua flags=allow-oom
-- redrive.lua: move dead letters to the tail of ready with fresh counts, and no expiry.
-- ROLES      operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]…   entry ids        of the dead letters, 1-100
-- A call ends after 1 MiB of dead letters, but handles at least one; the reply covers the handled entries.
-- Returns {'OK', now ms, degraded, 1 per entry redriven, 0 if it does not exist, -1 if it is foreign: not a message that
--   a consumer can receive, -2 if another message holds its unique key}, or {'BROKEN', key, type} {'ARG', name}
-- O(k): k entries.
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
--- include lib/dead_letters.lua

local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(ALL_LEVELS) or bad_letters()
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now then return { 'ARG', 'now' } end

open_journal(attributes.journal, now)
local MAX_BYTES = 1048576
-- A message with a unique key takes it again: true if it may.
local function take_unique(message)
  local key = flag_in(message.flags, ' u=')
  -- With flag l it has freed its key at its delivery.
  if not key or string.find(message.flags, ' l=', 1, true) then return true end
  key = percent_decoded(key)
  local holder, until_ms = string.match(redis.call('HGET', unique, key) or '', '^(%S+) (%d+)')
  if holder and holder ~= message.id and tonumber(until_ms) > now then return false end
  redis.call('HSET', unique, key, message.id .. ' ' .. text(MAX_MS))
  return true
end
local to, gone, taken, reply, bytes = places(attributes.levels), {}, {}, { 'OK', text(now), 0 }, 0
for i = 2, #ARGV do
  if bytes >= MAX_BYTES then break end
  local entry = not taken[ARGV[i]] and letter(ARGV[i])
  local envelope = entry and letter_field(entry, 'envelope')
  local message = envelope and parse(envelope)
  bytes = bytes + (envelope and #envelope or 0)
  local kept_out = message and not take_unique(message)
  if message and not kept_out then
    local redrives = number_in(message.flags, ' d=') or 0
    message.flags = string.gsub(message.flags, ' [dkx]=[^ ]*', '') .. ' d=' .. text(redrives + 1)
    message.receives, message.nacks, message.timeouts, message.shared = 0, 0, 0, 0
    ready_from(message, now)
    record('redriven', message.item)
    forget_result(message.flags, message.id)
    local item = assemble(message)
    put(to, to.tails, level(item), item)
    gone[#gone + 1] = ARGV[i]
    taken[ARGV[i]] = true
  end
  reply[#reply + 1] = kept_out and -2 or message and 1 or entry and -1 or 0
end
local moved = write_places(to)
if #gone > 0 then redis.call('XDEL', dead, unpack(gone)) end
if moved > 0 and not attributes.paused_out then ring(wake, moved) end
reply[3] = math.max(count(stats, { redriven = moved, stored = moved }), write_journal(''))
return reply
