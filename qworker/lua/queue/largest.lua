#!lua flags=no-writes
-- largest.lua: find the groups of a queue with the most waiting messages.
-- ROLES      daemon, operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    most             groups to return, 1-100
-- Returns {'OK', now ms, then per group, the largest first: its stored name, waiting, in flight, since when its first one
--   has waited in ms or ''}, or a refusal: {'BROKEN', key, type} {'ARG', name}
-- Looks at every 64th of the waiting messages, in the order of their groups: a group with more than that is found. It ends
-- after 1 MiB of messages, by when it has looked at some from all over them; and reads 1 MiB for the last figure.
-- O(log d + s) of d delayed messages and s in flight, at most about 2,000.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/keys.lua
--- include lib/envelope.lua
--- include lib/group_records.lua
--- include lib/groups.lua
--- include lib/group_writes.lua
--- include lib/group_lines.lua
--- include lib/group_limits.lua
--- include lib/group_members.lua
--- include lib/packed_slots.lua
--- include lib/group_slots.lua

local LOOKS, MAX_BYTES, MAX_SLOTS, SEATS_FROM = 64, 1048576, 2000, 4503599627370496
local refused = broken({ meta, 'hash', delayed, 'zset' }) or groups().broken()
if refused then return refused end
local now, most, it = clock(ARGV[1], meta), whole(ARGV[2], 1, 100), groups()
if not now or not most then return { 'ARG', 'most' } end
local low, high = text(SEATS_FROM), '(' .. text(MAX_MS)
local waiting, found, seen, bytes = redis.call('ZCOUNT', delayed, low, high), {}, {}, 0
local looks = math.min(LOOKS, waiting)
local before = redis.call('ZCOUNT', delayed, '-inf', '(' .. low) -- a rank is found sooner than the nth of a range

-- The six bits of a number backwards: 0, 32, 16, 48, 8, … So the first looks are far apart.
local function backwards(number)
  local at = 0
  for _ = 1, 6 do
    at, number = 2 * at + number % 2, math.floor(number / 2)
  end
  return at
end

for number = 0, LOOKS - 1 do
  if bytes >= MAX_BYTES then break end
  local look = backwards(number)
  local rank = before + math.floor(look * waiting / looks)
  local member = look < looks and redis.call('ZRANGE', delayed, rank, rank)[1]
  bytes = bytes + #(member or '')
  local name = member and group_of(member)
  if name and not seen[name] then
    seen[name] = true
    found[#found + 1] = { name, it.waiting(name) }
  end
end
table.sort(found, function(a, b) return a[2] > b[2] or a[2] == b[2] and a[1] < b[1] end)
local reply, uncounted = { 'OK', text(now) }, #found > 0 and it.running_uncounted('0', MAX_SLOTS) or {}
bytes = 0
for i = 1, math.min(most, #found) do
  local name = found[i][1]
  local one = it.record(name)
  local first = bytes < MAX_BYTES and it.members(one, 1)[1]
  bytes = bytes + #(first or '')
  local message = first and parse(first)
  local since_ms = message and (number_in(message.flags, ' t=') or tonumber(message.sent))
  for _, word in ipairs({ name, text(found[i][2]), text(one.busy + (uncounted[name] or 0)), since_ms and text(since_ms) or '' }) do
    reply[#reply + 1] = word
  end
end
return reply
