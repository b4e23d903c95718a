#!lua flags=allow-oom
-- retire.lua: take the totals of a shard that is being removed, so that its queue continues to count them.
-- ROLES      daemon, operator
-- KEYS[1]    meta HASH        of the shard; unless its mark says `draining` it is in use, and nothing is taken
-- KEYS[2]    stats HASH       of the shard; its current state, times and journal numbers stay
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    id               of this removal; letters, digits, `-`
-- ARGV[3]    added            the id that the queue has added to its totals (absorb.lua), whose totals are forgotten; or ''
-- Returns {'OK', id, name, total, …}, the same at each call until they were added; {'OK', ''} without
--   any; or {'BROKEN', key, type} {'ARG', name}. The id returned is `<ms>-<id>`, its ms higher than that of the last one:
--   absorb.lua refuses what an earlier removal took.
-- O(1).
--- include lib/clock.lua
--- include lib/checks.lua

local meta, stats, id, added = KEYS[1], KEYS[2], ARGV[2], ARGV[3]
if not string.find(id, '^[%w-]+$') then return { 'ARG', 'id' } end
local refused = broken({ meta, 'hash', stats, 'hash' })
if refused then return refused end

local now = clock(ARGV[1], meta)
if not now then return { 'ARG', 'now' } end

local function told(taken)
  local reply = { 'OK' }
  for word in string.gmatch(taken, '%S+') do reply[#reply + 1] = word end
  return reply
end

-- The id of the last removal; its totals follow until they were added.
local last, totals = string.match(redis.call('HGET', meta, 'retired') or '', '^(%S*)(.*)$')
if totals ~= '' and last ~= added then return told(last .. totals) end
if totals ~= '' then
  redis.call('HSET', meta, 'retired', last)
  return { 'OK', '' }
end
local is_draining = string.find(redis.call('HGET', meta, 'shard') or '', '^draining ')
if added ~= '' or not is_draining then return { 'OK', '' } end

local MAX_NAMES = 100 -- that absorb.lua takes
local STANDS = { stored = true, unacked = true }
local flat, names = redis.call('HGETALL', stats), {}
local ms = math.max(now, (whole(string.match(last, '^%d+'), 0, MAX_MS) or 0) + 1)
local taken = text(ms) .. '-' .. id
for i = 1, #flat, 2 do
  local name, total = flat[i], flat[i + 1]
  local counts = not STANDS[name] and not string.find(name, '_ms$') and not string.find(name, '^journal_')
  if counts and string.find(name, '^%S+$') and string.find(total, '^%d+$') and whole(total, 1, MAX_MS) and #names < MAX_NAMES then
    names[#names + 1] = name
    taken = taken .. ' ' .. name .. ' ' .. total
  end
end
if #names == 0 then return { 'OK', '' } end
redis.call('HSET', meta, 'retired', taken)
for _, name in ipairs(names) do redis.call('HDEL', stats, name) end
return told(taken)
