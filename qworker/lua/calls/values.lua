#!lua flags=no-writes
-- values.lua: read how the members of a group of calls have ended, in their order.
-- ROLES      consumer, operator
-- KEYS[1]    join HASH        see join.lua
-- ARGV[1]    first            number of the first member to read
-- Returns {'OK', size or 0 of an unknown group, policy, left, over ms or '', then the words of each member from the first on, ''
--   of one that has not ended}, or {'BROKEN', key, type} {'ARG', name}. A call ends after 500 members or 1 MiB, but reads one.
-- O(m): m members.
--- include lib/checks.lua

local MAX_MEMBERS, MAX_BYTES, TOGETHER = 500, 1048576, 20
local join, first = KEYS[1], whole(ARGV[1], 0, 100000)
local found = redis.pcall('HMGET', join, '@size', '@policy', '@left', '@over')
if found.err then return { 'BROKEN', join, redis.call('TYPE', join).ok } end
if not first then return { 'ARG', 'first' } end
local size = tonumber(found[1]) or 0
local reply, bytes, at, last = { 'OK', size, found[2] or '', found[3] or '', found[4] or '' }, 0, first, math.min(size, first + MAX_MEMBERS)
while at < last and bytes < MAX_BYTES do
  -- The first one is read alone: values may be large.
  local names = {}
  for member = at, math.min(last, at == first and at + 1 or at + TOGETHER) - 1 do names[#names + 1] = string.format('%d', member) end
  for _, words in ipairs(redis.call('HMGET', join, unpack(names))) do
    if bytes > 0 and bytes + #(words or '') > MAX_BYTES then return reply end
    reply[#reply + 1], bytes = words or '', bytes + #(words or '')
  end
  at = at + #names
end
return reply
