#!lua flags=allow-oom
-- retire.lua: take the totals of a shard that is given up, so that its queue goes on counting with them.
-- KEYS[1]    meta HASH        of the shard; where its mark does not say `draining` nothing is taken: it is in use
-- KEYS[2]    stats HASH       of the shard; what it holds and when it was looked at stays, and the journal's numbers
-- Returns {'OK', name, total, …} with each total once, however often it is called; or {'BROKEN', key, type}.
-- O(1).
--- include lib/checks.lua

local meta, stats = KEYS[1], KEYS[2]
local refused = broken({ meta, 'hash', stats, 'hash' })
if refused then return refused end
local reply = { 'OK' }
if not string.find(redis.call('HGET', meta, 'shard') or '', '^draining ') then return reply end

local MOST = 9007199254740992 -- numbers are exact up to here
local STANDS = { stored = true, unacked = true }
local flat = redis.call('HGETALL', stats)
for i = 1, #flat, 2 do
  local name, total = flat[i], flat[i + 1]
  local counts = not STANDS[name] and not string.find(name, '_ms$') and not string.find(name, '^journal_')
  if counts and string.find(total, '^%d+$') and whole(total, 1, MOST) then
    redis.call('HDEL', stats, name)
    reply[#reply + 1], reply[#reply + 2] = name, total
  end
end
return reply
