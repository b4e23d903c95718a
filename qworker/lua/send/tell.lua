#!lua
-- tell.lua: store results from the outbox of another queue, once, and notify the clients that wait for them.
-- ROLES      consumer, daemon, operator
-- KEYS[1]    producers HASH   lane → last number, ms
-- KEYS[2]    meta HASH
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    lane             of the outbox
-- ARGV[3]    n                results, 1-1000; then n × (number, greater than the one before it, message id, keep ms
--                             (1-2592000000), words: what it came to, or '' to forget that)
-- A result with a value stays: the message has ended since.
-- Returns {'OK', now ms, number of the last result} or {'BROKEN', key, type} {'ARG', name}
-- O(n): n results.
--- include lib/clock.lua
--- include lib/checks.lua

local producers, meta = KEYS[1], KEYS[2]
local refused = broken({ producers, 'hash', meta, 'hash' })
if refused then return refused end
local now, lane, number = clock(ARGV[1], meta), ARGV[2], whole(ARGV[3], 1, 1000)
if not now or not string.find(lane, '^out%-%x+$') or not number or #ARGV ~= 3 + 4 * number then return { 'ARG', 'header' } end
local before, MAX_KEEP_MS = 0, 2592000000
for at = 4, #ARGV, 4 do
  before = whole(ARGV[at], before + 1, MAX_MS)
  if not before or not string.find(ARGV[at + 1], '^[%w._-]+$') or not whole(ARGV[at + 2], 1, MAX_KEEP_MS) then
    return { 'ARG', 'result' }
  end
end

local last = tonumber(string.match(redis.call('HGET', producers, lane) or '', '^%d+')) or 0
for at = 4, #ARGV, 4 do
  local key, words = string.sub(meta, 1, -5) .. 'result:' .. ARGV[at + 1], ARGV[at + 3]
  local stands = redis.pcall('GET', key)
  local has_value = type(stands) == 'string' and string.find(stands, '^ok[ \n]')
  if tonumber(ARGV[at]) > last and not has_value then
    if words == '' then redis.call('DEL', key) else redis.call('SET', key, words, 'PX', ARGV[at + 2]) end
    redis.pcall('SPUBLISH', key, '')
  end
end
redis.call('HSET', producers, lane, text(math.max(before, last)) .. ' ' .. text(now))
return { 'OK', text(now), text(math.max(before, last)) }
