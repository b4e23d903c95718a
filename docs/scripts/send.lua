#!lua
-- send.lua: store new messages once, however often the call is repeated.
-- KEYS[1-5]  see lib/push.lua
-- KEYS[6]    producers HASH   lane → last sequence number and ms
-- KEYS[7]    unique HASH      unique key → message id and expiry ms
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    lane             '' for a one-shot sender, who may not repeat the call
-- ARGV[3]    sequence         number of this call on its lane
-- ARGV[4]    delay ms         '' for the queue's, or '@' and a due time in ms since 1970
-- ARGV[5]    ttl ms           '' for the queue's, 0 none
-- ARGV[6]    priority         0-9
-- ARGV[7]    n                messages, 1-1000; then n × (head `q1 <id> `, tail `[ k=v …]\n<body>`)
-- then       u                then u × (message number 1…n, unique key, held for ms)
-- Returns {'OK', stored, now ms, degraded, then (message number, id) per message that another one's unique
--   key kept out}, or {'DUPLICATE', 0, now ms, 0, …} where the call had been done before, or a refusal:
--   {'GHOST'} {'PAUSED'} {'FULL', stored, maxlen} {'TOOLARGE', bytes, maxsize} {'BROKEN', key, type} {'ARG', name}
-- O(n) for ready, O(n log d) for delayed messages, d being delayed already.
local MAX_MS = 9007199254740992 -- 2^53: the largest integer that a score keeps

-- The time of this call in ms since 1970: the server's. An explicit time is for tests, and
-- refused (nil) unless the queue's meta.test is set: no client clock reaches a script otherwise.
local function clock(override, meta)
  if override ~= '' then
    if redis.call('HGET', meta, 'test') == '1' then return tonumber(override) end
    return nil
  end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Integers as text: `..` writes 1e+14 from fourteen digits on. An infinite score that somebody wrote
-- comes out as a number as well.
local function text(number)
  return string.format('%.0f', math.max(-MAX_MS, math.min(number, MAX_MS)))
end
-- What is validated before the first write. A script is isolated but not rolled back: a command
-- that fails after a write leaves that write behind.

-- The first of {key, type, key, type, …} that holds another type, as a refusal; nil if none does.
local function broken(expected)
  for i = 1, #expected, 2 do
    local found = redis.call('TYPE', expected[i]).ok
    if found ~= 'none' and found ~= expected[i + 1] then
      return { 'BROKEN', expected[i], found }
    end
  end
  return nil
end

-- A whole number within minimum…maximum, or nil.
local function whole(value, minimum, maximum)
  local number = tonumber(value)
  if not number or number ~= math.floor(number) or number < minimum or number > maximum then
    return nil
  end
  return number
end

local MAX_VISIBILITY_MS = 43200000 -- 12 h
-- Counters and doorbell come last and must not fail the call: the change itself is done by then.
-- Returns 1 (degraded) where one of them failed, else 0.
local function count(stats, amounts)
  local degraded = 0
  for name, amount in pairs(amounts) do
    if amount ~= 0 then
      local reply = redis.pcall('HINCRBY', stats, name, string.format('%.0f', amount))
      if type(reply) == 'table' and reply.err then degraded = 1 end
    end
  end
  return degraded
end

-- Wake up to `messages` waiting consumers. The doorbell is bounded: whoever is woken and leaves
-- messages behind rings again, so eight tokens start any number of consumers.
local MAX_TOKENS = 8
local function ring(wake, messages)
  local missing = math.min(messages, MAX_TOKENS) - redis.call('LLEN', wake)
  for _ = 1, missing do redis.call('RPUSH', wake, '1') end
end
-- Accept new messages. KEYS as the sending scripts declare them:
--   1 ready LIST of the message's priority · 2 delayed ZSET · 3 wake LIST · 4 meta HASH · 5 stats HASH
local ready, delayed, wake, meta, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

local function read_attributes()
  local found = redis.call('HMGET', meta, 'paused', 'maxlen', 'maxsize', 'delay_ms', 'ttl_ms', 'levels')
  return {
    paused_in = found[1] == 'in' or found[1] == 'all',
    paused_out = found[1] == 'out' or found[1] == 'all',
    maxlen = whole(found[2], 0, MAX_MS) or 0,
    maxsize = whole(found[3], 0, MAX_MS) or 0,
    delay_ms = whole(found[4], 0, MAX_MS) or 0,
    ttl_ms = whole(found[5], 0, MAX_MS) or 0,
    levels = found[6] or '',
  }
end

-- A refusal if the queue takes no `number` more messages, else nil. maxlen counts what is stored
-- (ready, delayed and unacked), and 0 means no limit.
local function refusal(attributes, number)
  if attributes.paused_in then return { 'PAUSED' } end
  if attributes.maxlen > 0 then
    local stored = tonumber(redis.call('HGET', stats, 'stored')) or 0
    if stored + number > attributes.maxlen then
      return { 'FULL', text(stored), text(attributes.maxlen) }
    end
  end
  return nil
end

-- The middle of the header: what only the server knows.
local function stamp(now, ttl_ms)
  local middle = text(now) .. ' 0 0 0 0'
  if ttl_ms > 0 then middle = middle .. ' x=' .. text(math.min(now + ttl_ms, MAX_MS)) end
  return middle
end

local CHUNK = 500
local function push(items, priority, delay_ms, attributes, now)
  if #items == 0 then return end
  if delay_ms > 0 then
    local due = text(math.min(now + delay_ms, MAX_MS))
    for first = 1, #items, CHUNK do
      local pairs_of = {}
      for i = first, math.min(first + CHUNK - 1, #items) do
        pairs_of[#pairs_of + 1] = due
        pairs_of[#pairs_of + 1] = items[i]
      end
      redis.call('ZADD', delayed, unpack(pairs_of))
    end
    return
  end
  if priority > 0 and not string.find(attributes.levels, tostring(priority), 1, true) then
    redis.call('HSET', meta, 'levels', attributes.levels .. tostring(priority))
  end
  for first = 1, #items, CHUNK do
    redis.call('RPUSH', ready, unpack(items, first, math.min(first + CHUNK - 1, #items)))
  end
  if not attributes.paused_out then ring(wake, #items) end
end

local producers, unique = KEYS[6], KEYS[7]
local refused = broken({ ready, 'list', delayed, 'zset', wake, 'list', meta, 'hash', stats, 'hash',
  producers, 'hash', unique, 'hash' })
if refused then return refused end
local now = clock(ARGV[1], meta)
local lane, sequence, priority = ARGV[2], whole(ARGV[3], 0, MAX_MS), whole(ARGV[6], 0, 9)
local number = whole(ARGV[7], 1, 1000)
if not now or not sequence or not priority or not number then return { 'ARG', 'header' } end
local attributes = read_attributes()
local delay_ms = ARGV[4] == '' and attributes.delay_ms or whole(ARGV[4], 0, MAX_MS)
if string.sub(ARGV[4], 1, 1) == '@' then
  local due_ms = whole(string.sub(ARGV[4], 2), 0, MAX_MS)
  delay_ms = due_ms and math.max(due_ms - now, 0)
end
local ttl_ms = ARGV[5] == '' and attributes.ttl_ms or whole(ARGV[5], 0, MAX_MS)
if not delay_ms or not ttl_ms then return { 'ARG', 'delay or ttl' } end
local first_key = 8 + 2 * number
local keyed = whole(ARGV[first_key], 0, number)
if not keyed then return { 'ARG', 'messages' } end

local function id_of(message) return string.match(ARGV[6 + 2 * message], '^q1 (%S+)') end

-- Messages kept out by the unique key of another one: {number, id, …}; `known` are those that hold
-- their own key already, because this call is a repetition.
local kept_out, outside, holds = {}, {}, {}
for i = 0, keyed - 1 do
  local message = whole(ARGV[first_key + 1 + 3 * i], 1, number)
  local key, held_ms = ARGV[first_key + 2 + 3 * i], whole(ARGV[first_key + 3 + 3 * i], 1, MAX_MS)
  if not message or not held_ms or not id_of(message) then return { 'ARG', 'unique' } end
  local id, until_ms = string.match(redis.call('HGET', unique, key) or '', '^(%S+) (%d+)$')
  if not id or tonumber(until_ms) <= now then id = holds[key] and holds[key].id end
  if id and id ~= id_of(message) then
    kept_out[#kept_out + 1] = text(message)
    kept_out[#kept_out + 1] = id
    outside[message] = true
  elseif not holds[key] then
    holds[key] = { id = id_of(message), until_ms = math.min(now + held_ms, MAX_MS) }
  end
end

if lane ~= '' then
  local last = tonumber(string.match(redis.call('HGET', producers, lane) or '', '^%d+'))
  if last and sequence == last then return { 'DUPLICATE', 0, text(now), 0, unpack(kept_out) } end
  if last and sequence < last then return { 'GHOST' } end
end
refused = refusal(attributes, number - #kept_out / 2)
if refused then return refused end

local middle, items = stamp(now, ttl_ms), {}
for message = 1, number do
  local head, tail = ARGV[6 + 2 * message], ARGV[7 + 2 * message]
  if attributes.maxsize > 0 then
    local bytes = #tail - (string.find(tail, '\n', 1, true) or 0)
    if bytes > attributes.maxsize then return { 'TOOLARGE', text(bytes), text(attributes.maxsize) } end
  end
  if not outside[message] then items[#items + 1] = head .. middle .. tail end
end

push(items, priority, delay_ms, attributes, now)
for key, hold in pairs(holds) do redis.call('HSET', unique, key, hold.id .. ' ' .. text(hold.until_ms)) end
if lane ~= '' then redis.call('HSET', producers, lane, text(sequence) .. ' ' .. text(now)) end
local degraded = count(stats, { sent = #items, stored = #items })
return { 'OK', #items, text(now), degraded, unpack(kept_out) }
