#!lua flags=allow-oom
-- hold.lua: take waiting messages out of the queue without losing them: delayed, and never due.
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]…   items            1-100 messages as they are stored
-- Returns {'OK', now ms, 0, then 1 per item that is held now, 0 where it does not wait any more}
--   or {'BROKEN', key, type} {'ARG', name}
-- A call ends after about 100,000 entries of lists, and at least one item: the reply is as long as what was looked at.
-- O(k n): k items, n entries between each and the nearer end of its list; O(k log d) for items among d delayed.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/keys.lua
--- include lib/envelope.lua
--- include lib/pick.lua

local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(attributes.levels) or bad_items()
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now then return { 'ARG', 'now' } end

local reply = { 'OK', text(now), 0 }
for i = 2, #ARGV do
  local item = ARGV[i]
  if looked >= MOST_LOOKED then break end
  local place, side = waits_in(item, attributes.levels)
  if place then
    redis.call('ZADD', delayed, text(MAX_MS), item)
    if place ~= 'delayed' then take_out(item, place, side) end
  end
  reply[i + 2] = place and 1 or 0
end
return reply
