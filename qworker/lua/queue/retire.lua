#!lua flags=allow-oom
-- retire.lua: take the totals of a shard that is given up, so that its queue goes on counting with them.
-- ROLES      daemon, operator
-- KEYS[1]    meta HASH        of the shard; where its mark does not say `draining` nothing more is taken: it is in use
-- KEYS[2]    stats HASH       of the shard; what it holds and when it was looked at stays, and the journal's numbers
-- ARGV[1]    id               for what is taken now; letters, digits, `-`
-- ARGV[2]    added            the id of what was added to the queue's totals (absorb.lua), and is forgotten here; or ''
-- Returns {'OK', id, name, total, …}, the same until they were added, however often it is called; {'OK', ''} without
--   any; or {'BROKEN', key, type} {'ARG', name}.
-- O(1).
--- include lib/checks.lua

local meta, stats, id, added = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
if not string.find(id, '^[%w-]+$') then return { 'ARG', 'id' } end
local refused = broken({ meta, 'hash', stats, 'hash' })
if refused then return refused end

local function told(taken)
  local reply = { 'OK' }
  for word in string.gmatch(taken, '%S+') do reply[#reply + 1] = word end
  return reply
end

local taken = redis.call('HGET', meta, 'retired')
if taken and added ~= '' and string.match(taken, '^%S+') == added then
  redis.call('HDEL', meta, 'retired')
  return { 'OK', '' }
end
if taken then return told(taken) end
local is_draining = string.find(redis.call('HGET', meta, 'shard') or '', '^draining ')
if added ~= '' or not is_draining then return { 'OK', '' } end

local MOST = 9007199254740992 -- numbers are exact up to here
local MOST_NAMES = 100 -- that absorb.lua takes
local STANDS = { stored = true, unacked = true }
local flat, names = redis.call('HGETALL', stats), {}
taken = id
for i = 1, #flat, 2 do
  local name, total = flat[i], flat[i + 1]
  local counts = not STANDS[name] and not string.find(name, '_ms$') and not string.find(name, '^journal_')
  if counts and string.find(name, '^%S+$') and string.find(total, '^%d+$') and whole(total, 1, MOST) and #names < MOST_NAMES then
    names[#names + 1] = name
    taken = taken .. ' ' .. name .. ' ' .. total
  end
end
if #names == 0 then return { 'OK', '' } end
redis.call('HSET', meta, 'retired', taken)
for _, name in ipairs(names) do redis.call('HDEL', stats, name) end
return told(taken)
