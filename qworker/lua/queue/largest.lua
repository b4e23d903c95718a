#!lua flags=no-writes
-- largest.lua: find the groups of a queue with the most waiting messages.
-- ROLES      daemon, operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    most             groups to return, 1-100
-- Returns {'OK', now ms, then per group, the largest first: its stored name, waiting, in flight, since when its first one
--   has waited in ms or ''}, or a refusal: {'BROKEN', key, type} {'ARG', name}
-- Looks at every 64th of the waiting messages, in the order of their groups: a group with more than that is found.
-- O(log d + s) of d delayed messages and s in flight, at most 20,000.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/keys.lua
--- include lib/envelope.lua
--- include lib/groups.lua
--- include lib/group_writes.lua
--- include lib/group_lines.lua
--- include lib/group_limits.lua
--- include lib/group_members.lua
--- include lib/packed_slots.lua
--- include lib/group_slots.lua

local LOOKS, SEATS_FROM = 64, 4503599627370496
local refused = broken({ meta, 'hash', delayed, 'zset' }) or groups().broken()
if refused then return refused end
local now, most, it = clock(ARGV[1], meta), whole(ARGV[2], 1, 100), groups()
if not now or not most then return { 'ARG', 'most' } end
local low, high = text(SEATS_FROM), '(' .. text(MAX_MS)
local waiting, found, seen = redis.call('ZCOUNT', delayed, low, high), {}, {}
for look = 0, math.min(LOOKS, waiting) - 1 do
  local at = math.floor(look * waiting / math.min(LOOKS, waiting))
  local member = redis.call('ZRANGE', delayed, low, high, 'BYSCORE', 'LIMIT', at, 1)
  local name = group_of(member[1])
  if name and not seen[name] then
    seen[name] = true
    found[#found + 1] = { name, it.waiting(name) }
  end
end
table.sort(found, function(a, b) return a[2] > b[2] or a[2] == b[2] and a[1] < b[1] end)
local reply, uncounted = { 'OK', text(now) }, #found > 0 and it.running_uncounted() or {}
for i = 1, math.min(most, #found) do
  local name = found[i][1]
  local one = it.record(name)
  local first = it.members(one, 1)[1]
  local message = first and parse(first)
  local since_ms = message and (number_in(message.flags, ' t=') or tonumber(message.sent))
  for _, word in ipairs({ name, text(found[i][2]), text(one.busy + (uncounted[name] or 0)), since_ms and text(since_ms) or '' }) do
    reply[#reply + 1] = word
  end
end
return reply
