#!lua flags=allow-oom
-- forward.lua: forget the entries of an outbox that their destination has stored, and read the next ones.
-- ROLES      consumer, daemon, operator
-- KEYS[1]    out HASH                  destination → `<lane> <number of the last entry>`, see lib/ends.lua
-- KEYS[2]    out:<destination> STREAM  its entries
-- KEYS[3]    meta HASH
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    destination
-- ARGV[3-4]  lane, number     stored there: entries of this lane up to this number are forgotten; '' and 0 for none
-- ARGV[5]    count            1-1000 entries to read; 0 reads none
-- Returns {'OK', now ms, lane, entries left, {number, {name, value, …}} per entry}; the lane is '' if nothing was ever
--   written there, or not for 15 minutes; or {'BROKEN', key, type} {'ARG', name}. At most 1 MiB of entries, but at least one.
-- O(n): n entries forgotten and read.
--- include lib/clock.lua
--- include lib/checks.lua

local outs, stream, meta, destination = KEYS[1], KEYS[2], KEYS[3], ARGV[2]
local refused = broken({ outs, 'hash', stream, 'stream', meta, 'hash' })
if refused then return refused end
local MAX_BYTES, IDLE_NUMBERS = 1048576, 900000 * 1024 -- of 15 minutes, see lib/ends.lua
local now, number, count = clock(ARGV[1], meta), whole(ARGV[4], 0, MAX_MS), whole(ARGV[5], 0, 1000)
if not now or not destination or not number or not count then return { 'ARG', 'request' } end
local lane, last = string.match(redis.call('HGET', outs, destination) or '', '^(%S+) (%d+)$')
if not lane then return { 'OK', text(now), '', 0 } end
if lane == ARGV[3] and number > 0 then redis.call('XTRIM', stream, 'MINID', text(number + 1) .. '-0') end
local left = redis.call('XLEN', stream)
if left == 0 and tonumber(last) + IDLE_NUMBERS < now * 1024 then
  -- The destination forgets the lane by then, too.
  redis.call('DEL', stream)
  redis.call('HDEL', outs, destination)
  return { 'OK', text(now), '', 0 }
end

local reply, from, bytes = { 'OK', text(now), lane, left }, '-', 0
while #reply - 4 < count and bytes < MAX_BYTES do
  local entries = redis.call('XRANGE', stream, from, '+', 'COUNT', math.min(count - #reply + 4, from == '-' and 1 or 16))
  if #entries == 0 then break end
  for _, entry in ipairs(entries) do
    local size = 0
    for _, word in ipairs(entry[2]) do size = size + #word end
    if bytes > 0 and bytes + size > MAX_BYTES then return reply end
    bytes = bytes + size
    reply[#reply + 1] = { string.match(entry[1], '^%d+'), entry[2] }
  end
  from = '(' .. entries[#entries][1]
end
return reply
