-- What follows the end of a message: its unique key is free, clients that wait for its result are notified, its group of
-- calls counts it, and the state of a run (flag c) expires, as do the values that were kept for a callback (flag h).
--   result:<message id> STRING, expires   `<state>[ words]\n<rest>`: how the message ended, see docs/protocol.md
--   run:<message id> HASH, runs ZSET      see step.lua
--   join:<message id> HASH, joins ZSET    see join.lua
-- Their keys are made here: a script that ends messages learns their ids as it reads them. They are in the slot of
-- the queue. The name of a result is also the sharded channel that waiting clients listen to.

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

-- Whether a waiting message with an expiry has lost its unique key: it had expired, another one took the key, and the clock
-- was set back since. `head`: its header. It must not run beside the other. Once delivered, it holds its key until its end.
local function has_lost_key(head)
  local key = string.find(head, ' u=', 1, true) and not string.find(head, ' l=', 1, true) and flag_in(head, ' u=')
  local id = key and string.match(head, '^(%S+) %d+ 0 ')
  local holder = id and redis.call('HGET', unique, percent_decoded(key))
  return holder and string.match(holder, '^%S+') ~= id
end

-- A message is delivered: with flag l it frees its unique key; with an expiry, after which it could still run, it holds
-- the key until its end from now on.
local function start_unique(head)
  local key, id = flag_in(head, ' u='), string.match(head, '^%S+')
  if not key then return end
  key = percent_decoded(key)
  if string.find(head, ' l=', 1, true) then
    free_unique(key, id)
  elseif string.find(head, ' x=', 1, true) then
    -- Without a holder its time had come, and the clock was set back since.
    local holder, more = string.match(redis.call('HGET', unique, key) or id .. ' 0', '^(%S+) %d+(.*)$')
    if holder == id then redis.call('HSET', unique, key, id .. ' ' .. text(MAX_MS) .. more) end
  end
end

local function result_key(id)
  return string.sub(meta, 1, -5) .. 'result:' .. id
end

-- Only a hint: waiting clients also look now and then.
local function tell_waiting(key)
  redis.pcall('SPUBLISH', key, '')
end

local tell_others
do
-- Name the message that has ended so, unless the words name one already.
local function with_step(words, task, own_id)
  local first, rest = string.match(words, '^([^\n]*)(.*)$')
  if string.find(first, '^dead %S+ %S* %S+ %S+ %S+$') or string.find(first, '^%l+ %S+ %S+ %S+$') then return words end
  return first .. ' ' .. string.match(meta, '{(.*)}:meta$') .. ' ' .. task .. ' ' .. own_id .. rest
end

local function tell(queue, own_id, entry, words, task)
  entry[#entry + 1] = words == '' and '' or with_step(words, task, own_id)
  if not pcall(send_out, queue, own_id, entry, (clock(ARGV[1], meta))) then missed = 1 end
end

-- A message may be a step of a chain. Flag j says where the chain's result is waited for, percent-encoded:
-- `<queue>:<message id>:<keep ms>:<task of this step>`, or `-`. Reports there that the chain has ended without a value, and
-- at which step.
local function tell_chain(value, own_id, words)
  local queue, id, keep_ms, task = string.match(percent_decoded(value), '^([a-z0-9][a-z0-9._-]*):([%w._-]+):(%d+):([%w_.-]+)$')
  if not queue or #queue > 64 or #id > 64 or not whole(keep_ms, 1, MAX_KEEP_MS) then return end
  tell(queue, own_id, { 'result', id, 'keep', keep_ms, 'words' }, words, task)
end

-- A message may be a member of a group of calls. Flag i says where these are counted, see gather.lua:
-- `<queue or shard>:<group id>:<number of the member>:<task>`, percent-encoded.
local function tell_group(value, own_id, words)
  local queue, id, member, task =
    string.match(percent_decoded(value), '^([a-z0-9][a-z0-9._-]*/?%d*):([%w._-]+):(%d+):([%w_.-]+)$')
  if not queue or #queue > 67 or #id > 64 or not whole(member, 0, MAX_MS) then return end
  tell(queue, own_id, { 'join', id, 'member', member, 'words' }, words, task)
end

-- Report to other queues how a message without a value has ended; no words: it continues after all. `dropped`: it was
-- reported as dead before.
function tell_others(head, own_id, words, dropped)
  local chain, member = flag_in(head, ' j='), flag_in(head, ' i=')
  if chain and chain ~= '-' and not dropped then tell_chain(chain, own_id, words) end
  if member then tell_group(member, own_id, words) end
end
end

-- A message has ended without a value, `words` say how. Written only where its header asks for a result (flag r). A
-- failure, of a user without the right to, costs the message nothing and is reported.
local function end_result(item, words)
  if kind(item) ~= 'own' or not has_flags(item) then return end
  local head = header(item)
  local keep_ms, id = number_in(head, ' r='), string.match(head, '^([%w._-]+) ')
  if id then tell_others(head, id, words) end
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

-- Groups of calls, see join.lua.
local joins = {}

function joins.key(id)
  return string.sub(meta, 1, -5) .. 'join:' .. id
end

-- Those that have not ended.
function joins.index()
  return string.sub(meta, 1, -5) .. 'joins'
end

-- A group of calls has ended: its values go. The record of its start stays for as long as it says, so that it is not
-- started again. `outcome`: of one that was not decided, see journal.lua. `queues_ms`, or nil: how long the queues of its calls
-- stay known, of which a cancel that was interrupted has not reached all.
function joins.finish(id, outcome, queues_ms)
  local join, index = joins.key(id), joins.index()
  local found = redis.pcall('HMGET', join, '@start', '@size', '@keep', '@over', '@made', '@queues')
  redis.pcall('ZREM', index, id)
  if found.err or not found[2] then return end
  if book.on and not found[4] then book.record_group('group_decided', id, found[5], outcome or 'ended', '-') end
  redis.pcall('UNLINK', join)
  if queues_ms and found[6] then
    redis.pcall('HSET', join, '@size', found[2], '@sent', found[2], '@over', found[4] or '1', '@queues', found[6])
    redis.pcall('PEXPIRE', join, text(queues_ms))
  end
  if not found[1] or not found[3] then return end
  redis.pcall('HSET', join, '@start', found[1], '@size', found[2], '@sent', found[2], '@over', '1')
  redis.pcall('PEXPIRE', join, found[3])
end

-- A run has ended: its state is kept as long as its result, the flag r of `head`. A dead one has not ended: it can be
-- redriven. With a run, or a callback (flag h), the groups of calls end that were for it; `words` as of a result, or nil.
local function end_run(head, id, words)
  if string.find(head, ' h=', 1, true) then joins.finish(id) end
  if not string.find(head, ' c=', 1, true) then return end
  local keep_ms, run, runs = math.min(number_in(head, ' r=') or 0, MAX_KEEP_MS), run_key(id), runs_key()
  local its_groups = redis.pcall('HGET', run, '@joins')
  if type(its_groups) == 'string' then
    for group in string.gmatch(its_groups, '%S+') do joins.finish(group, nil, words == 'cancelled' and keep_ms or nil) end
  end
  redis.pcall('PEXPIRE', run, text(keep_ms))
  redis.pcall('ZREM', runs, id)
end

local function end_run_of(item, words)
  if kind(item) ~= 'own' or not has_flags(item) then return end
  local head = header(item)
  local id = string.match(head, '^([%w._-]+) ')
  if id and #id <= 64 then end_run(head, id, words) end
end

-- The words of a dead letter in a result.
local function dead_words(reason, class, words)
  return 'dead ' .. reason .. ' ' .. string.gsub(class, '%s', '_') .. '\n' .. string.sub(words, 1, 2048)
end

-- An item has ended without an ack and is no dead letter.
local function end_of(item, words)
  free_unique_of(item)
  if has_groups then groups().free_slot(item) end
  end_result(item, words)
  end_run_of(item, words)
end

-- A message that had ended waits again.
local function forget_result(head, id)
  tell_others(head, id, '')
  if not string.find(head, ' r=', 1, true) then return end
  local key = result_key(id)
  redis.pcall('DEL', key)
end
