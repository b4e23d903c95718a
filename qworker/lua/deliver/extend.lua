#!lua flags=allow-oom
-- extend.lua: move the visibility deadlines of leases further away, never nearer.
-- ROLES      consumer, operator
-- KEYS[1]    unacked ZSET     lease id → deadline ms
-- KEYS[2]    meta HASH
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    visibility ms    from now, 1-43200000 (12 h)
-- ARGV[3]…   lease ids        1-1000
-- Returns {'OK', now ms, deadline ms per lease; 0 if the lease is gone}, or {'BROKEN', key, type} {'ARG', name}
-- O(k log u): k leases of u.
--- include lib/clock.lua
--- include lib/checks.lua

local unacked, meta = KEYS[1], KEYS[2]
local refused = broken({ unacked, 'zset', meta, 'hash' })
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
return reply
