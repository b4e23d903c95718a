#!lua flags=no-writes
-- groups.lua: read a page of the groups of a queue that wait or run.
-- ROLES      operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    cursor           of groups: 0 at first, then that of the last call; of what is in flight: r0 at first
-- ARGV[3]…   names            as stored, 1-100: these groups in place of a page, the cursor being 0
-- Returns {'OK', now ms, next cursor or '0' at the end, then per group: its stored name, waiting, in flight, its
--   concurrency or '', until when it waits in ms or '', 1 if it waits for its parent or '', 1 if a handler raised RateLimited,
--   2 if an ordered one waits for its delayed message, or ''}, or a refusal: {'BROKEN', key, type} {'ARG', name}. With an r
--   before the cursor: {'OK', now ms, next cursor or '0' at the end, then per group that nothing limits: its stored name, in
--   flight}; the numbers of a group in several pages add up.
-- O(log d) for each of about 150 groups, of d delayed messages; O(1) for each of about 500 messages in flight.
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
--- include lib/group_pages.lua

local refused = broken({ meta, 'hash', delayed, 'zset' }) or groups().broken()
if refused then return refused end
local now, of_running, cursor = clock(ARGV[1], meta), string.match(ARGV[2] or '', '^(r?)(.*)$')
local scanned = of_running == 'r' and packed_slots.scanned(cursor) or cursor
if not now or not whole(scanned, 0, 18446744073709551615) then return { 'ARG', 'cursor' } end
if #ARGV > 102 then return { 'ARG', 'names' } end
local next_cursor, found = '0', nil
if #ARGV > 2 then
  local names = {}
  for i = 3, #ARGV do names[i - 2] = ARGV[i] end
  found = groups().states_of(names, now)
elseif of_running == 'r' then
  next_cursor, found = groups().uncounted_page(cursor)
  if next_cursor ~= '0' then next_cursor = 'r' .. next_cursor end
else
  next_cursor, found = groups().page(cursor, now)
end
local reply = { 'OK', text(now), next_cursor }
for i, word in ipairs(found) do reply[3 + i] = word end
return reply
