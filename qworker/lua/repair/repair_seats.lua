#!lua flags=allow-oom
-- repair_seats.lua: find waiting members of groups that their groups do not know, and seat them again.
-- ROLES      operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    repair           1 to repair, 0 to report
-- ARGV[3]    after            a score of delayed; '' at first, then that of the last call
-- Returns {'OK', now ms, the last score or '' at the end, message id per member without a place}, or {'BROKEN', key, type}
--   {'ARG', name}. One that is seated again goes behind the other members of its group; one without a group is due now.
-- O(log d) for each of about 200 members, of d delayed messages; a call ends after 1 MiB.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
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
--- include lib/group_pages.lua

local SEATS_FROM, CHUNK, MAX_BYTES = '4503599627370496', 200, 1048576
local refused = broken({ meta, 'hash', wake, 'list', delayed, 'zset' }) or groups().broken()
if refused then return refused end
local now, repair = clock(ARGV[1], meta), ARGV[2] == '1'
local after = ARGV[3] == '' and SEATS_FROM or whole(ARGV[3], tonumber(SEATS_FROM), MAX_MS) and '(' .. ARGV[3]
if not now or not after then return { 'ARG', 'after' } end
local reply, bytes, seen, lost = { 'OK', text(now), '' }, 0, 0, {}
while seen < CHUNK and bytes < MAX_BYTES do
  local chunk = redis.call('ZRANGE', delayed, after, '(' .. text(MAX_MS), 'BYSCORE', 'LIMIT', seen,
    math.min(chunk_size(seen, bytes, MAX_BYTES - bytes), CHUNK - seen), 'WITHSCORES')
  if #chunk == 0 then break end
  for i = 1, #chunk, 2 do
    local item, name = chunk[i], group_of(chunk[i])
    if not name or not groups().is_seated(name, tonumber(chunk[i + 1])) then
      lost[#lost + 1] = { item, name }
      reply[#reply + 1] = string.match(item, '^q1 ([%w._-]+)') or ''
    end
    bytes, seen = bytes + #item, seen + 1
    reply[3] = text(tonumber(chunk[i + 1]))
  end
end
if seen < CHUNK and bytes < MAX_BYTES then reply[3] = '' end
if repair and #lost > 0 then
  groups().mark()
  for _, one in ipairs(lost) do
    if not one[2] or not groups().enter(one[1], one[2], false) then redis.call('ZADD', delayed, text(now), one[1]) end
  end
  ring(wake, #lost)
end
return reply
