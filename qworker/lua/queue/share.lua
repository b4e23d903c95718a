#!lua flags=allow-oom
-- share.lua: give a queue its shares of limits over several queues, and report what it does with them.
-- ROLES      daemon, operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2…]   3 per limit, 100 at most: parent (`acme/`), version, and words as in lib/groups.lua, '' to report alone, or
--            - to take it away. Words count only if the version is above that of the share the queue has.
-- Returns {'OK', now ms, then per limit: version of its share or 0, concurrency of it or '' for no limit, in flight,
--   waiting that may run by their own limits (at most what 16 groups have, and the number of the others; 0 in a queue that
--   receives nothing for now), how many have started}, or a refusal: {'BROKEN', key, type} {'ARG', name}. {'COUNTING'}: the
--   first limit of the queue is not stored, because not all that is in flight is counted; make the same call again.
-- O(l · log d): l limits, d delayed messages; the first limit of the queue as in limit.lua.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/keys.lua
--- include lib/envelope.lua
--- include lib/group_records.lua
--- include lib/groups.lua
--- include lib/group_writes.lua
--- include lib/group_lines.lua
--- include lib/group_limits.lua
--- include lib/group_members.lua
--- include lib/packed_slots.lua
--- include lib/group_slots.lua
--- include lib/group_counts.lua

local MAX_LIMITS, SAMPLE = 100, 16
local refused = broken({ meta, 'hash', wake, 'list', delayed, 'zset' }) or groups().broken()
if refused then return refused end
local now, it = clock(ARGV[1], meta), groups()
if not now or #ARGV > 1 + 3 * MAX_LIMITS or #ARGV % 3 ~= 1 then return { 'ARG', 'limits' } end
for at = 2, #ARGV, 3 do
  if not string.find(ARGV[at], '^[^/=*%c][^/*%c]*/$') or #ARGV[at] > 257 then return { 'ARG', 'name' } end
  if not whole(ARGV[at + 1], 0, MAX_MS) then return { 'ARG', 'version' } end
  if string.find(ARGV[at + 2], '[^%w=/. -]') then return { 'ARG', 'words' } end
end

local states, children, later, limits = it.states, it.children, it.later, it.limits

local function read(name)
  local words = redis.call('HGET', limits, name) or ''
  return tonumber(string.match(words, 's=(%d+)')) or 0, words
end

-- A share has as many tokens as before: they are neither made nor doubled by moving a rate from one queue to another.
local function keep_tokens(one, before, after)
  if not after.every_ms then return end
  local spent = after.burst
  if before.shared and before.every_ms then
    spent = math.max(0, math.max(0, one.rate_ms - now) / before.every_ms + after.burst - before.burst)
  end
  one.rate_ms = now + spent * after.every_ms
end

local function write(name, words)
  local one, before = it.record(name), it.limit(name)
  if words == '-' then
    redis.call('HDEL', limits, name)
    redis.call('HDEL', states, '*' .. name)
  else
    redis.call('HSET', limits, name, words)
  end
  it.forget_limit(name)
  keep_tokens(one, before, it.limit(name))
  redis.call('ZREM', later, name)
  it.waits(name, now)
  it.update_turn(name)
end

-- A queue that is paused, or that a handler has let wait, receives nothing: others can use its shares.
local mode = redis.call('HGET', meta, 'paused') or ''
local receives = mode ~= 'out' and mode ~= 'all' and (tonumber(string.match(mode, '^until (%d+)$')) or 0) <= now

-- How many members of the parent's groups wait and may run, but for the parent's limit.
local function waiting(name)
  if not receives then return 0 end
  local low, high = '[' .. name .. '\n', '(' .. name .. '\v'
  local number = 0
  for _, child in ipairs(redis.call('ZRANGEBYLEX', children, low, high, 'LIMIT', 0, SAMPLE)) do
    local group = string.match(child, '([^\n]+)$')
    number = number + math.min(it.waiting(group), it.limit(group).concurrency - it.record(group).busy)
  end
  return number + math.max(0, redis.call('ZLEXCOUNT', children, low, high) - SAMPLE)
end

local reply = { 'OK', text(now) }
for at = 2, #ARGV, 3 do
  local name, version, words = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
  if words ~= '' and version > read(name) then
    if words ~= '-' and redis.call('EXISTS', limits) == 0 and not it.count_page(now) then return { 'COUNTING' } end
    write(name, words)
  end
  local has, stored = read(name)
  for _, word in ipairs({
    text(has), string.match(stored, 'c=(%d+)') or '', text(it.record(name).busy), text(waiting(name)),
    redis.call('HGET', states, '*' .. name) or '0',
  }) do
    reply[#reply + 1] = word
  end
end
if it.opened > 0 then ring(wake, it.opened) end
return reply
