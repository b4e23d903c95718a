#!lua flags=no-writes
-- present.lua: report which of many queues or shards exist, and how each is divided.
-- ROLES      daemon, operator
-- KEYS       11 per queue: meta HASH, then those of which an existing queue has at least one: stats HASH, ready LIST,
--            suspect LIST, delayed ZSET, unacked ZSET, dead STREAM, schedules HASH, journal STREAM, producers HASH, unique HASH
-- Returns {'OK', one per queue: 0 if it does not exist, else its field `shards`, or '' without one}, or {'ARG', name}
-- O(q): q queues, 250 at most.

local PER_QUEUE = 11
if #KEYS % PER_QUEUE ~= 0 or #KEYS > 250 * PER_QUEUE then return { 'ARG', 'queues' } end
local found = {}
for first = 1, #KEYS, PER_QUEUE do
  local shards = redis.pcall('HGET', KEYS[first], 'shards')
  if type(shards) ~= 'string' then
    shards = redis.call('EXISTS', unpack(KEYS, first, first + PER_QUEUE - 1)) > 0 and '' or 0
  end
  found[#found + 1] = shards
end
return { 'OK', found }
