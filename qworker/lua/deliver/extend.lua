#!lua flags=allow-oom
-- extend.lua: move the visibility deadlines of leases further away, never nearer, and name their cancelled messages.
-- ROLES      consumer, operator
-- KEYS[1]    unacked ZSET     lease id → deadline ms
-- KEYS[2]    meta HASH
-- KEYS[3]    cancelled ZSET   message id → expiry ms
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    visibility ms    from now, 1-43200000 (12 h)
-- ARGV[3]…   lease ids        1-1000
-- Returns {'OK', now ms, deadline ms per lease; 0 if the lease is gone; then per cancelled message that a lease holds
--   `<position of the lease in the call, from 1> <index>`}, or {'BROKEN', key, type} {'ARG', name}
-- A call looks for tombstones of at least 1,000 messages, or 4 MiB of them, from another lease on each time; a queue without
-- tombstones pays one EXISTS.
-- O(k log u): k leases of u; with tombstones also O(n log c): n messages, c tombstones.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/lease.lua

local unacked, meta, cancelled = KEYS[1], KEYS[2], KEYS[3]
local refused = broken({ unacked, 'zset', meta, 'hash', cancelled, 'zset' })
if refused then return refused end
local now, visibility_ms = clock(ARGV[1], meta), whole(ARGV[2], 1, MAX_VISIBILITY_MS)
if not now or not visibility_ms or #ARGV > 1002 then return { 'ARG', 'visibility_ms' } end
local reply = { 'OK', text(now) }
for i = 3, #ARGV do
  local deadline = tonumber(redis.call('ZSCORE', unacked, ARGV[i]))
  if deadline then
    deadline = math.min(math.max(deadline, now + visibility_ms), now + MAX_VISIBILITY_MS)
    redis.call('ZADD', unacked, text(deadline), ARGV[i])
  end
  reply[i] = text(deadline or 0)
end
if redis.call('EXISTS', cancelled) == 0 then return reply end

local MAX_LOOKED, MAX_BYTES, looked, bytes, number = 1000, 4194304, 0, 0, #ARGV - 2
for i = 1, number do
  if looked >= MAX_LOOKED or bytes >= MAX_BYTES then break end
  local at = (i + now) % number + 1
  -- Made here, not declared: it is in the slot of the queue.
  local key = string.sub(meta, 1, -5) .. 'lease:' .. ARGV[at + 2]
  for _, entry in ipairs(broken({ key, 'hash' }) and {} or read_lease(key)) do
    looked, bytes = looked + 1, bytes + #entry[2]
    local id = string.match(entry[2], '^q1 ([%w._-]+) ') or ARGV[at + 2] .. '.' .. entry[3]
    if redis.call('ZSCORE', cancelled, id) then reply[#reply + 1] = at .. ' ' .. entry[3] end
  end
end
return reply
