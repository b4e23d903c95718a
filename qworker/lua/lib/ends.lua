-- What the end of a message brings about: its unique key is free, and those who wait for its result are told.
--   result:<message id> STRING, expires   `<state>[ words]\n<rest>`: what the message came to, see docs/protocol.md
-- The key of a result is made here: a script that ends messages learns their ids as it reads them. It is in the slot of
-- the queue. Its name is also the sharded channel on which waiting clients are told to look.

local MAX_KEEP_MS, MAX_RESULT = 2592000000, 1114112 -- 30 days · 1 MiB and what encryption adds

-- Free the unique key of a message that has ended, if the key still is this message's.
local function free_unique(key, id)
  local holder = redis.call('HGET', unique, key)
  if holder and string.match(holder, '^%S+') == id then redis.call('HDEL', unique, key) end
end

-- Senders percent-encode the values of flags; the hash holds unique keys unencoded.
local function percent_decoded(value)
  return (string.gsub(value, '%%(%x%x)', function(digits) return string.char(tonumber(digits, 16)) end))
end

local function free_unique_of(item)
  local key = flag(item, ' u=')
  if key then free_unique(percent_decoded(key), string.match(item, '^q1 (%S+)')) end
end

local function result_key(id)
  return string.sub(meta, 1, -5) .. 'result:' .. id
end

-- A hint alone: those who wait look now and then, too.
local function tell_waiting(key)
  redis.pcall('SPUBLISH', key, '')
end

-- A message has ended without a value, `words` say how. Written only where its header asks for a result (flag r). A
-- failure, of a user without the right to, costs the message nothing and is reported.
local function end_result(item, words)
  if kind(item) ~= 'own' or not has_flags(item) then return end
  local head = header(item)
  local keep_ms, id = number_in(head, ' r='), string.match(head, '^([%w._-]+) ')
  if not keep_ms or keep_ms < 1 or not id or #id > 64 then return end
  local key = result_key(id)
  local kept = redis.pcall('SET', key, words, 'PX', text(math.min(keep_ms, MAX_KEEP_MS)))
  if kept.err then missed = 1 else tell_waiting(key) end
end

-- What a result tells of a death.
local function dead_words(reason, class, words)
  return 'dead ' .. reason .. ' ' .. string.gsub(class, '%s', '_') .. '\n' .. string.sub(words, 1, 2048)
end

-- An item has ended without an ack and is no dead letter.
local function end_of(item, words)
  free_unique_of(item)
  end_result(item, words)
end

-- A message that had ended waits again.
local function forget_result(head, id)
  if not string.find(head, ' r=', 1, true) then return end
  local key = result_key(id)
  redis.pcall('DEL', key)
end
