#!lua flags=allow-oom
-- split_all.lua: give received messages a new visibility deadline, moving those of each lease to a new lease, in one call.
-- ROLES      consumer, operator
-- KEYS[1]    unacked ZSET     lease id → deadline ms
-- KEYS[2]    meta HASH
-- KEYS[3]…   lease HASH       two per lease: the one that holds the messages, and a new one, chosen by the caller; 1-64
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    visibility ms    from now, 1-43200000 (12 h)
-- ARGV[3]…   indices          per lease: their number, then the indices, which the messages keep; 1-1000 in all
-- Returns {'OK', now ms, deadline ms per message; 0 if the receipt is stale},
--   or a refusal: {'LEASEUSED', id} {'BROKEN', key, type} {'ARG', name}
-- O(n + k log u): n messages of k leases, u leases in all.
local unacked, meta = KEYS[1], KEYS[2]
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

if #KEYS > 130 or #ARGV > 1066 then return { 'ARG', 'leases' } end
local expected, leases, named, at = { unacked, 'zset', meta, 'hash' }, {}, {}, 3
for i = 3, #KEYS, 2 do
  local old, new = KEYS[i], KEYS[i + 1] or ''
  local old_id, new_id = string.match(old, '}:lease:([%w._-]+)$'), string.match(new, '}:lease:([%w._-]+)$')
  local number = whole(ARGV[at], 1, #ARGV - at)
  if not old_id or not new_id or not number then return { 'ARG', 'leases' } end
  leases[#leases + 1] = {
    old = old, old_id = old_id, new = new, new_id = new_id, first = at + 1, last = at + number,
  }
  at = at + number + 1
  for _, key in ipairs({ old, new }) do
    -- Messages of two leases may have the same index: in one new lease they would replace each other.
    if named[key] then return { 'ARG', 'leases' } end
    named[key] = true
    expected[#expected + 1] = key
    expected[#expected + 1] = 'hash'
  end
end
if at ~= #ARGV + 1 then return { 'ARG', 'leases' } end
local refused = broken(expected)
if refused then return refused end
local now, visibility_ms = clock(ARGV[1], meta), whole(ARGV[2], 1, MAX_VISIBILITY_MS)
if not now or not visibility_ms then return { 'ARG', 'visibility_ms' } end
for _, lease in ipairs(leases) do
  local old, new = lease.old, lease.new
  loosen(old)
  if redis.call('EXISTS', new) == 1 then
    -- A repetition of this call gets the same answer; an id that another call used is refused.
    lease.there = 0
    for i = lease.first, lease.last do
      if redis.call('HEXISTS', old, ARGV[i]) == 1 then return { 'LEASEUSED', lease.new_id } end
      lease.there = lease.there + redis.call('HEXISTS', new, ARGV[i])
    end
    if lease.there ~= redis.call('HLEN', new) then return { 'LEASEUSED', lease.new_id } end
  end
end
local reply, deadline = { 'OK', text(now) }, text(now + visibility_ms)
for _, lease in ipairs(leases) do
  local old, new, moved = lease.old, lease.new, false
  local standing = lease.there and text(tonumber(redis.call('ZSCORE', unacked, lease.new_id)) or 0)
  for i = lease.first, lease.last do
    local index = ARGV[i]
    local item = not standing and redis.call('HGET', old, index)
    if item then
      -- The id of a plain message comes from its lease, so it gets its id before it leaves the lease.
      if kind(item) == 'plain' then item = assemble(adopt(item, lease.old_id, index, now)) end
      redis.call('HSET', new, index, item)
      redis.call('HDEL', old, index)
      move_slot(item, lease.old_id, lease.new_id, index)
      moved = true
    end
    local held = item or standing and redis.call('HEXISTS', new, index) == 1
    reply[#reply + 1] = held and (standing or deadline) or '0'
  end
  if moved then
    redis.call('ZADD', unacked, deadline, lease.new_id)
    if redis.call('EXISTS', old) == 0 then redis.call('ZREM', unacked, lease.old_id) end
  end
end
return reply
