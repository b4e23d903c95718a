#!lua flags=allow-oom
-- redrive.lua: put dead letters back to the tail of ready with fresh counts, and no expiry.
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]…   entry ids        of the dead letters, 1-100
-- Returns {'OK', now ms, 1 per entry redriven, 0 where it is not there, -1 where it is foreign: nothing that a
--   consumer could take}, or {'BROKEN', key, type} {'ARG', name}
-- O(k): k entries.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/keys.lua
--- include lib/envelope.lua
--- include lib/ends.lua

local refused = broken({ meta, 'hash' })
if refused then return refused end
local attributes = read_attributes()
refused = broken_queue({ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 })
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now or #ARGV > 101 then return { 'ARG', 'entries' } end
-- Whole ids only: an incomplete one would name a range when read and another entry when deleted.
for i = 2, #ARGV do
  if not string.find(ARGV[i], '^%d+%-%d+$') then return { 'ARG', 'entry id' } end
end

local function field(entry, name)
  for i = 1, #entry, 2 do
    if entry[i] == name then return entry[i + 1] end
  end
  return ''
end

local to, gone, taken, reply = places(attributes.levels), {}, {}, { 'OK', text(now) }
for i = 2, #ARGV do
  local entry = not taken[ARGV[i]] and redis.pcall('XRANGE', dead, ARGV[i], ARGV[i])[1]
  local message = entry and parse(field(entry[2], 'envelope'))
  if message then
    local redrives = tonumber(string.match(message.flags, ' d=(%d+)')) or 0
    message.flags = string.gsub(string.gsub(message.flags, ' d=%d+', ''), ' x=%d+', '')
    message.flags = message.flags .. string.format(' d=%d', redrives + 1)
    message.receives, message.nacks, message.timeouts, message.shared = 0, 0, 0, 0
    local item = assemble(message)
    put(to, to.tails, level(item), item)
    gone[#gone + 1] = ARGV[i]
    taken[ARGV[i]] = true
  end
  reply[#reply + 1] = message and 1 or entry and -1 or 0
end
local moved = write_places(to)
if #gone > 0 then redis.call('XDEL', dead, unpack(gone)) end
count(stats, { redriven = moved, stored = moved })
if moved > 0 and not attributes.paused_out then ring(wake, moved) end
return reply
