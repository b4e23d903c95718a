-- Effects of an ack: what else happens if, and only if, the ack counts. They are read before the first write, and applied
-- while the message is still in its lease, by the call that takes it out: a repeated call finds it gone, and a stale one
-- never finds it.
-- In ARGV each is its name and its words:
--   result   keep ms (1-2592000000), value      kept under the message's id, see lib/ends.lua
--   push     priority 0-9, delay ms, ttl ms ('' for the queue's, ttl 0 none), head `q1 <id> `, tail `[ k=v …]\n<body>`
--                                               a new message in this queue, also if that is paused or full
--   out      queue, then the words of a push    a new message in another queue, see lib/outbox.lua
--   member   queue or shard, group id, number, words   the end of a member of a group of calls, see gather.lua
--   open     queue, group id, spec              a group of calls whose callback is in that queue, see join.lua
--   end                                         nothing more: the script reads the message, whose values go, see lib/ends.lua

local MAX_EFFECTS = 1000
local read_effects, apply_effects
do
local EFFECTS = { result = 2, push = 5, out = 6, member = 4, open = 3, ['end'] = 0 } -- name → words
local QUEUE, SHARD, MAX_SPEC = '^[a-z0-9][a-z0-9._-]*$', '^[a-z0-9][a-z0-9._-]*/?%d*$', 8388608

-- The words of a new message from `at` on; nil if one is wrong.
local function read_new(effect, at)
  effect.priority, effect.head, effect.tail = whole(ARGV[at], 0, 9), ARGV[at + 3], ARGV[at + 4]
  effect.delay_ms, effect.ttl_ms = ARGV[at + 1], ARGV[at + 2]
  return effect.priority
    and (effect.delay_ms == '' or whole(effect.delay_ms, 0, MAX_MS)) and (effect.ttl_ms == '' or whole(effect.ttl_ms, 0, MAX_MS))
    and string.find(effect.head, '^q1 [%w._-]+ $') and #effect.head <= MAX_ID + 4 and string.find(effect.tail, '\n', 1, true)
end

local takes = {} -- the priorities whose lists were checked in this call

-- An error if a new message cannot be written, else nil.
local function refused_push(priority)
  local wrong = broken({ ready(priority), 'list' })
  local problem = wrong and redis.error_reply('WRONGTYPE ' .. wrong[2] .. ' is a ' .. wrong[3])
    or denied('messages', 'RPUSH', ready(priority), '') or denied('messages', 'ZADD', delayed, '0', '')
    or denied('messages', 'HSET', meta, 'levels', '')
  takes[priority] = not problem
  return problem
end

-- Read `number` effects; returns them and the position after them, or nil and what is wrong: the name of an
-- argument, or an error.
function read_effects(at, number)
  local effects = {}
  local function read(effect)
    if effect.name == 'result' then
      effect.keep_ms, effect.value = whole(ARGV[at + 1], 1, MAX_KEEP_MS), ARGV[at + 2]
      if not effect.keep_ms or #effect.value > MAX_RESULT then return 'result' end
      return denied('results', 'SET', result_key('0'), '')
    elseif effect.name == 'push' then
      if not read_new(effect, at + 1) then return 'push' end
      return not takes[effect.priority] and refused_push(effect.priority) or nil
    end
    if effect.name == 'end' then return end
    effect.queue = ARGV[at + 1]
    local named = string.find(effect.queue, effect.name == 'member' and SHARD or QUEUE) and #effect.queue <= 67
    if not named then return effect.name end
    if effect.name == 'member' then
      effect.group, effect.member, effect.words = ARGV[at + 2], whole(ARGV[at + 3], 0, MAX_MS), ARGV[at + 4]
      if not effect.member or not string.find(effect.group, '^[%w._-]+$') or #effect.words > MAX_RESULT then return 'member' end
    elseif effect.name == 'open' then
      effect.group, effect.spec = ARGV[at + 2], ARGV[at + 3]
      if not string.find(effect.group, '^[%w._-]+$') or #effect.spec > MAX_SPEC then return 'open' end
    elseif not read_new(effect, at + 2) then
      return 'out'
    end
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
function apply_effects(effects, id, to, now, amounts)
  for _, effect in ipairs(effects) do
    if effect.name == 'result' then
      local key = result_key(id)
      redis.call('SET', key, effect.value, 'PX', text(effect.keep_ms))
      tell_waiting(key)
      amounts.results = (amounts.results or 0) + 1
    elseif effect.name == 'push' then
      push_new(effect, to, now, amounts)
    elseif effect.name == 'member' then
      send_out(effect.queue, id, { 'join', effect.group, 'member', text(effect.member), 'words', effect.words }, now)
    elseif effect.name == 'open' then
      send_out(effect.queue, id, { 'open', effect.group, 'spec', effect.spec }, now)
    elseif effect.name == 'out' then
      send_out(effect.queue, id, {
        'priority', text(effect.priority), 'delay', effect.delay_ms, 'ttl', effect.ttl_ms,
        'head', effect.head, 'tail', effect.tail,
      }, now)
    end
  end
end
end

-- Ack a message with effects, which the caller has found in its lease.
local function settle_kept(lease, other, index, item, to, now, amounts)
  local id = string.match(item, '^q1 ([%w._-]+) ')
  local head = id and has_flags(item) and header(item)
  local key = head and flag_in(head, ' u=')
  if key then free_unique(percent_decoded(key), id) end
  apply_effects(other.effects, id or lease.id .. '.' .. index, to, now, amounts)
  if head and #id <= 64 then end_run(head, id) end
  amounts.acked, amounts.stored = (amounts.acked or 0) + 1, (amounts.stored or 0) - 1
  if book.on then record('acked', item, { lease = lease.id, index = index, times = other.times }) end
end
