#!lua flags=no-writes
-- names.lua: read a page of the index of queues: only valid names of queues and shards.
-- ROLES      consumer, daemon, operator
-- KEYS[1]    queues HASH      queue → anything; a list for tools and reapers; other programs may write to it
-- ARGV[1]    cursor           0 at first, then that of the last page
-- ARGV[2]    count            entries to look at, about, 1-1000
-- Returns {'OK', next cursor or '0' at the end, other entries, {names}}, or a refusal: {'BROKEN', key, type} {'ARG', name}
-- Entries of other programs are counted but not returned, however large they are.
-- O(c): c entries, as counted.
--- include lib/checks.lua

local queues = KEYS[1]
local refused = broken({ queues, 'hash' })
if refused then return refused end
local cursor, count = whole(ARGV[1], 0, 18446744073709551615), whole(ARGV[2], 1, 1000)
if not cursor or not count then return { 'ARG', 'cursor or count' } end
local LONGEST = 67 -- 64 for a name, 3 for the number of a shard
local page = redis.call('HSCAN', queues, ARGV[1], 'COUNT', count)
local names, others = {}, 0
for i = 1, #page[2], 2 do
  local name = page[2][i]
  if #name <= LONGEST and string.find(name, '^[a-z0-9][a-z0-9._-]*/?%d*$') then
    names[#names + 1] = name
  else
    others = others + 1
  end
end
return { 'OK', page[1], others, names }
