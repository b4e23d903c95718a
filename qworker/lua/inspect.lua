#!lua flags=no-writes
-- inspect.lua: the sizes, ages, counters and attributes of a queue at one instant.
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- Returns {'OK', now ms, {ready per level 0-9}, suspects, delayed, leases, dead, oldest ready sent ms or '',
--   next due ms or '', next deadline ms or '', waiting tokens, {stats}, {meta}} or {'BROKEN', key, type}
--   {'ARG', name}
-- O(1) but for the counters and attributes.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/keys.lua
--- include lib/envelope.lua

local refused = broken({ meta, 'hash' }) or broken_queue({ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 })
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now then return { 'ARG', 'now' } end
local lengths, oldest_ms = {}, nil
local heads = { redis.call('LINDEX', suspect, 0) }
for number = 0, 9 do
  lengths[number + 1] = redis.call('LLEN', ready(number))
  heads[#heads + 1] = redis.call('LINDEX', ready(number), 0)
end
for _, head in ipairs(heads) do
  local message = head and kind(head) == 'own' and parse(head)
  if message and (not oldest_ms or tonumber(message.sent) < oldest_ms) then oldest_ms = tonumber(message.sent) end
end
local function first_score(key)
  local score = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  return score and text(tonumber(score)) or ''
end
return {
  'OK', text(now), lengths, redis.call('LLEN', suspect), redis.call('ZCARD', delayed),
  redis.call('ZCARD', unacked), redis.call('XLEN', dead), oldest_ms and text(oldest_ms) or '',
  first_score(delayed), first_score(unacked), redis.call('LLEN', wake),
  redis.call('HGETALL', stats), redis.call('HGETALL', meta),
}
