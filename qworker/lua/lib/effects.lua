-- Effects of an ack: what else happens if, and only if, the ack counts. They are read before the first write, and applied
-- while the message is still in its lease, by the call that takes it out: a repeated call finds it gone, and a stale one
-- never finds it.
-- In ARGV each is its name and its words:
--   result   keep ms (1-2592000000), value      kept under the message's id, see lib/ends.lua

local EFFECTS = { result = 2 } -- name → words
local MAX_EFFECTS = 1000
local may_keep = false

-- Read `number` effects; returns them and the position after them, or nil and what is wrong: the name of an
-- argument, or an error.
local function read_effects(at, number)
  local effects = {}
  for i = 1, number do
    local effect = { name = ARGV[at] }
    local words = EFFECTS[effect.name]
    if not words or #ARGV < at + words then return nil, 'effect' end
    effect.keep_ms, effect.value = whole(ARGV[at + 1], 1, MAX_KEEP_MS), ARGV[at + 2]
    if not effect.keep_ms or #effect.value > MAX_RESULT then return nil, 'result' end
    -- Refused here, before the first write: not midway. Asked once a call: all keys differ in the id alone.
    may_keep = may_keep or redis.acl_check_cmd('SET', result_key('0'), '')
    if not may_keep then
      return nil, redis.error_reply('NOPERM this user may not write results; write its rules again with qworker acl')
    end
    effects[i] = effect
    at = at + 1 + words
  end
  return effects, at
end

local function apply_effects(effects, id)
  for _, effect in ipairs(effects) do
    local key = result_key(id)
    redis.call('SET', key, effect.value, 'PX', text(effect.keep_ms))
    tell_waiting(key)
  end
end
