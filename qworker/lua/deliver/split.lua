#!lua flags=allow-oom
-- split.lua: give one received message a lease and a visibility deadline of its own.
-- ROLES      consumer, operator
-- KEYS[1]    unacked ZSET     lease id → deadline ms
-- KEYS[2]    meta HASH
-- KEYS[3]    lease HASH       that holds the message
-- KEYS[4]    lease HASH       new, chosen by the caller
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    index            of the message in its lease; the message keeps it, and with it the blame at expiry
-- ARGV[3]    visibility ms    from now, 0-43200000 (12 h); 0 means visible at the next reap; '' the message's own, or
--                             the queue's
-- ARGV[4]    half             may be left out; 1: refuse once half of the message's time to live has passed
-- Returns {'OK', now ms, deadline ms} or {'OK', now ms, 0} if the receipt is stale,
--   or a refusal: {'LEASEUSED', id} {'TOOLATE', message id, half ms} {'BROKEN', key, type} {'ARG', name}
-- O(log u): u leases.
local unacked, meta, old, new = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/envelope.lua
--- include lib/lease.lua
--- include lib/group_records.lua
--- include lib/groups.lua
--- include lib/group_writes.lua
--- include lib/packed_slots.lua
--- include lib/group_slots.lua
--- include lib/move_slot.lua

local refused = broken({ unacked, 'zset', meta, 'hash', old, 'hash', new, 'hash' })
if refused then return refused end
local now, own = clock(ARGV[1], meta), ARGV[3] == ''
local visibility_ms = own and DEFAULT_VISIBILITY_MS or whole(ARGV[3], 0, MAX_VISIBILITY_MS)
local old_id, new_id = string.match(old, '}:lease:([%w._-]+)$'), string.match(new, '}:lease:([%w._-]+)$')
if not now or not visibility_ms or not old_id or not new_id then return { 'ARG', 'visibility_ms' } end
loosen(old)
if redis.call('EXISTS', new) == 1 then
  -- A repetition of this call gets the same answer; an id that another call used is refused.
  if redis.call('HEXISTS', new, ARGV[2]) == 0 or redis.call('HEXISTS', old, ARGV[2]) == 1 then
    return { 'LEASEUSED', new_id }
  end
  return { 'OK', text(now), text(tonumber(redis.call('ZSCORE', unacked, new_id)) or 0) }
end
local item = redis.call('HGET', old, ARGV[2])
if not item then return { 'OK', text(now), '0' } end
if ARGV[4] == '1' then
  local message = kind(item) == 'own' and parse(item)
  local expiry = message and number_in(message.flags, ' x=')
  local half = expiry and math.floor((tonumber(message.sent) + expiry) / 2)
  if half and now > half then return { 'TOOLATE', message.id, text(half) } end
end
if own then
  visibility_ms = whole(kind(item) == 'own' and flag(item, ' v='), 1, MAX_VISIBILITY_MS)
    or whole(redis.call('HGET', meta, 'visibility_ms'), 1, MAX_VISIBILITY_MS) or DEFAULT_VISIBILITY_MS
end
-- The id of a plain message comes from its lease, so it gets its id before it leaves the lease.
if kind(item) == 'plain' then item = assemble(adopt(item, old_id, ARGV[2], now)) end
local deadline = text(now + visibility_ms)
redis.call('HSET', new, ARGV[2], item)
redis.call('ZADD', unacked, deadline, new_id)
redis.call('HDEL', old, ARGV[2])
move_slot(item, old_id, new_id, ARGV[2])
if redis.call('EXISTS', old) == 0 then redis.call('ZREM', unacked, old_id) end
return { 'OK', text(now), deadline }
