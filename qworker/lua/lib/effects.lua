-- Effects of an ack: what else happens if, and only if, the ack counts. They are read before the first write, and applied
-- while the message is still in its lease, by the call that takes it out: a repeated call finds it gone, and a stale one
-- never finds it.
-- In ARGV each is its name and its words:
--   result   keep ms (1-2592000000), value      kept under the message's id, see lib/ends.lua
--   push     priority 0-9, delay ms, ttl ms ('' for the queue's, ttl 0 none), head `q1 <id> `, tail `[ k=v …]\n<body>`
--                                               a new message in this queue, also if that is paused or full
--   out      queue, then the words of a push    a new message in another queue, see lib/ends.lua

local EFFECTS = { result = 2, push = 5, out = 6 } -- name → words
local MAX_EFFECTS = 1000
local QUEUE = '^[a-z0-9][a-z0-9._-]*$'

-- The words of a new message from `at` on; nil if one is wrong.
local function read_new(effect, at)
  effect.priority, effect.head, effect.tail = whole(ARGV[at], 0, 9), ARGV[at + 3], ARGV[at + 4]
  effect.delay_ms, effect.ttl_ms = ARGV[at + 1], ARGV[at + 2]
  return effect.priority
    and (effect.delay_ms == '' or whole(effect.delay_ms, 0, MAX_MS)) and (effect.ttl_ms == '' or whole(effect.ttl_ms, 0, MAX_MS))
    and string.find(effect.head, '^q1 [%w._-]+ $') and #effect.head <= MAX_ID + 4 and string.find(effect.tail, '\n', 1, true)
end

-- Read `number` effects; returns them and the position after them, or nil and what is wrong: the name of an
-- argument, or an error.
local function read_effects(at, number)
  local effects = {}
  local function read(effect)
    if effect.name == 'result' then
      effect.keep_ms, effect.value = whole(ARGV[at + 1], 1, MAX_KEEP_MS), ARGV[at + 2]
      if not effect.keep_ms or #effect.value > MAX_RESULT then return 'result' end
      return denied('results', 'SET', result_key('0'), '')
    elseif effect.name == 'push' then
      if not read_new(effect, at + 1) then return 'push' end
      local wrong = broken({ ready(effect.priority), 'list' })
      return wrong and redis.error_reply('WRONGTYPE ' .. wrong[2] .. ' is a ' .. wrong[3])
        or denied('messages', 'RPUSH', ready(effect.priority), '') or denied('messages', 'ZADD', delayed, '0', '')
        or denied('messages', 'HSET', meta, 'levels', '')
    end
    effect.queue = ARGV[at + 1]
    if #effect.queue > 64 or not string.find(effect.queue, QUEUE) or not read_new(effect, at + 2) then return 'out' end
    local outs, stream = outbox(effect.queue)
    local wrong = broken({ outs, 'hash', stream, 'stream' })
    return wrong and redis.error_reply('WRONGTYPE ' .. wrong[2] .. ' is a ' .. wrong[3])
      or denied('outboxes', 'XADD', stream, '1-0', 'h', '') or denied('outboxes', 'HSET', outs, 'h', '')
  end
  for i = 1, number do
    local effect = { name = ARGV[at] }
    local words = EFFECTS[effect.name]
    if not words or #ARGV < at + words then return nil, 'effect' end
    local problem = read(effect)
    if problem then return nil, problem end
    effects[i] = effect
    at = at + 1 + words
  end
  return effects, at
end

-- Apply the effects of the message `id`. New messages go to `to`, see lib/requeue.lua.
local function apply_effects(effects, id, to, now, amounts)
  local function add(name) amounts[name] = (amounts[name] or 0) + 1 end

  local function push(effect)
    local defaults = redis.call('HMGET', meta, 'delay_ms', 'ttl_ms', 'levels')
    local delay_ms = whole(effect.delay_ms, 0, MAX_MS) or whole(defaults[1], 0, MAX_MS) or 0
    local ttl_ms = whole(effect.ttl_ms, 0, MAX_MS) or whole(defaults[2], 0, MAX_MS) or 0
    local item = effect.head .. stamp(now, ttl_ms, delay_ms) .. effect.tail
    if book.all then record('sent', item) end
    add('sent')
    add('stored')
    if delay_ms > 0 then
      redis.call('ZADD', delayed, text(math.min(now + delay_ms, MAX_DUE_MS)), item)
      return
    end
    if not has_groups and group_of(item) then
      groups().mark()
      has_groups = true
    end
    if not to.used[effect.priority] then
      redis.call('HSET', meta, 'levels', (defaults[3] or '') .. text(effect.priority))
      to.used[effect.priority] = true
    end
    put(to, to.tails, effect.priority, item)
  end

  for _, effect in ipairs(effects) do
    if effect.name == 'result' then
      local key = result_key(id)
      redis.call('SET', key, effect.value, 'PX', text(effect.keep_ms))
      tell_waiting(key)
      add('results')
    elseif effect.name == 'push' then
      push(effect)
    else
      send_out(effect.queue, id, {
        'priority', text(effect.priority), 'delay', effect.delay_ms, 'ttl', effect.ttl_ms,
        'head', effect.head, 'tail', effect.tail,
      }, now)
    end
  end
end
