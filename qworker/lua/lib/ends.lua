-- What the end of a message brings about: its unique key is free, those who wait for its result are told, and the state
-- of a run (flag c) expires.
--   result:<message id> STRING, expires   `<state>[ words]\n<rest>`: what the message came to, see docs/protocol.md
--   run:<message id> HASH, runs ZSET      see step.lua
-- Their keys are made here: a script that ends messages learns their ids as it reads them. They are in the slot of
-- the queue. The name of a result is also the sharded channel on which waiting clients are told to look.
-- The outbox of a queue holds what ends bring about in other queues, until it is stored there. Each destination has a lane
-- of its own, so that one which is away holds up no other.
--   out HASH                   destination → `<lane> <number of the last entry>`
--   out:<destination> STREAM   `<number>-0` → what is to be stored there: a message, see lib/effects.lua, or a result
-- Numbers follow the clock: those of entries that a failover has taken back are not given again.

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

-- A message is delivered: with flag l it lets go of its unique key; with an expiry, after which it could still run, it
-- holds the key until its end from now on.
local function start_unique(head)
  local key, id = flag_in(head, ' u='), string.match(head, '^%S+')
  if not key then return end
  key = percent_decoded(key)
  if string.find(head, ' l=', 1, true) then
    free_unique(key, id)
  elseif string.find(head, ' x=', 1, true) then
    local holder, more = string.match(redis.call('HGET', unique, key) or '', '^(%S+) %d+(.*)$')
    if holder == id then redis.call('HSET', unique, key, id .. ' ' .. text(MAX_MS) .. more) end
  end
end

local function result_key(id)
  return string.sub(meta, 1, -5) .. 'result:' .. id
end

-- A hint alone: those who wait look now and then, too.
local function tell_waiting(key)
  redis.pcall('SPUBLISH', key, '')
end

local function outbox(destination)
  local outs = string.sub(meta, 1, -5) .. 'out'
  return outs, outs .. ':' .. destination
end

-- Add an entry, a list of names and values. `id` is of the message that has ended.
local function send_out(destination, id, entry, now)
  local NUMBERS_PER_MS = 1024
  local outs, stream = outbox(destination)
  local lane, last = string.match(redis.call('HGET', outs, destination) or '', '^(%S+) (%d+)$')
  lane = lane or 'out-' .. string.sub(redis.sha1hex(stream .. id .. text(now)), 1, 24)
  local number = text(math.max((tonumber(last) or 0) + 1, now * NUMBERS_PER_MS))
  redis.call('XADD', stream, number .. '-0', unpack(entry))
  redis.call('HSET', outs, destination, lane .. ' ' .. number)
  redis.pcall('HINCRBY', stats, 'followed', 1)
end

-- A message may be a step of a chain. Flag j says where the chain's result is waited for, percent-encoded:
-- `<queue>:<message id>:<keep ms>:<task of this step>`, or `-`. Tells there that the chain has ended without a value, and at
-- which step; no words: that it goes on.
local function tell_chain(head, own_id, words)
  local value = flag_in(head, ' j=')
  if not value or value == '-' then return end
  local queue, id, keep_ms, task = string.match(percent_decoded(value), '^([a-z0-9][a-z0-9._-]*):([%w._-]+):(%d+):([%w_.-]+)$')
  if not queue or #queue > 64 or #id > 64 or not whole(keep_ms, 1, MAX_KEEP_MS) then return end
  if words ~= '' then
    local first, rest = string.match(words, '^([^\n]*)(.*)$')
    words = first .. ' ' .. string.match(meta, '{(.*)}:meta$') .. ' ' .. task .. ' ' .. own_id .. rest
  end
  local entry = { 'result', id, 'keep', keep_ms, 'words', words }
  if not pcall(send_out, queue, own_id, entry, clock(ARGV[1], meta)) then missed = 1 end
end

-- A message has ended without a value, `words` say how. Written only where its header asks for a result (flag r). A
-- failure, of a user without the right to, costs the message nothing and is reported.
local function end_result(item, words)
  if kind(item) ~= 'own' or not has_flags(item) then return end
  local head = header(item)
  local keep_ms, id = number_in(head, ' r='), string.match(head, '^([%w._-]+) ')
  if id then tell_chain(head, id, words) end
  if not keep_ms or keep_ms < 1 or not id or #id > 64 then return end
  local key = result_key(id)
  local kept = redis.pcall('SET', key, words, 'PX', text(math.min(keep_ms, MAX_KEEP_MS)))
  if kept.err then missed = 1 else tell_waiting(key) end
end

local function run_key(id)
  return string.sub(meta, 1, -5) .. 'run:' .. id
end

-- The runs that have not ended.
local function runs_key()
  return string.sub(meta, 1, -5) .. 'runs'
end

-- A run has ended: its state is kept as long as its result, the flag r of `head`. A dead one has not ended: it can be
-- redriven.
local function end_run(head, id)
  if not string.find(head, ' c=', 1, true) then return end
  local keep_ms, runs = math.min(number_in(head, ' r=') or 0, MAX_KEEP_MS), runs_key()
  redis.pcall('PEXPIRE', run_key(id), text(keep_ms))
  redis.pcall('ZREM', runs, id)
end

local function end_run_of(item)
  if kind(item) ~= 'own' or not has_flags(item) then return end
  local head = header(item)
  local id = string.match(head, '^([%w._-]+) ')
  if id and #id <= 64 then end_run(head, id) end
end

-- What a result tells of a death.
local function dead_words(reason, class, words)
  return 'dead ' .. reason .. ' ' .. string.gsub(class, '%s', '_') .. '\n' .. string.sub(words, 1, 2048)
end

-- An item has ended without an ack and is no dead letter.
local function end_of(item, words)
  free_unique_of(item)
  if has_groups then groups().free_slot(item) end
  end_result(item, words)
  end_run_of(item)
end

-- A message that had ended waits again.
local function forget_result(head, id)
  tell_chain(head, id, '')
  if not string.find(head, ' r=', 1, true) then return end
  local key = result_key(id)
  redis.pcall('DEL', key)
end
