#!lua flags=allow-oom
-- turn.lua: let one reaper at a time divide limits over several queues, so that they do not undo each other's work.
-- ROLES      daemon
-- KEYS[1]    limits HASH      of the namespace; `@turn` → `<reaper> <until ms>`
-- ARGV[1]    reaper           its name
-- ARGV[2]    for ms           how long it has the turn if it does not come again, 1-60000
-- Returns {'OK', 0 without limits, 1 if it is the turn of another one, 2 of this one}, or {'BROKEN', key, type} {'ARG', name}
-- O(1).
--- include lib/clock.lua
--- include lib/checks.lua

local limits, reaper, for_ms = KEYS[1], ARGV[1], whole(ARGV[2], 1, 60000)
if not for_ms or #reaper == 0 or #reaper > 300 then return { 'ARG', 'reaper' } end
local refused = broken({ limits, 'hash' })
if refused then return refused end
if redis.call('EXISTS', limits) == 0 then return { 'OK', 0 } end
local now = clock('', '')
local other, until_ms = string.match(redis.call('HGET', limits, '@turn') or '', '^(.*) (%d+)$')
if other and other ~= reaper and tonumber(until_ms) > now and tonumber(until_ms) <= now + for_ms then return { 'OK', 1 } end
if redis.call('HLEN', limits) == (other and 1 or 0) then
  redis.call('DEL', limits) -- The last limit was removed.
  return { 'OK', 0 }
end
redis.call('HSET', limits, '@turn', reaper .. ' ' .. text(now + for_ms))
return { 'OK', 2 }
