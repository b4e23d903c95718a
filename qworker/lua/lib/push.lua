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
