-- Grace after a gap. After a stalled server, a failover, a clock jump or a time without reapers, leases
-- look overdue although their consumers had no chance to extend them. After such a gap only leases that
-- were overdue at the last visit before it are reaped, until every live consumer has had one heartbeat
-- (5 s at most) and a second to extend the others.
local HEARTBEAT_MS = 5000
-- How far the deadline of an entry that cannot be reaped is moved.
local ASIDE_MS = 60000

-- Note the visit; returns the latest deadline that counts as overdue now.
local function visit(stats_key, now, tick_ms)
  local found = redis.call('HMGET', stats_key, 'reaped_ms', 'gap_from_ms', 'gap_until_ms')
  local reaped_ms, gap_from_ms, gap_until_ms = tonumber(found[1]), tonumber(found[2]), tonumber(found[3])
  redis.call('HSET', stats_key, 'reaped_ms', text(now))
  if not reaped_ms then return now end
  local away_ms = now - reaped_ms
  if away_ms < 0 or away_ms > math.max(3 * tick_ms, 2000) then
    redis.call('HSET', stats_key, 'gap_from_ms', text(reaped_ms),
      'gap_until_ms', text(now + HEARTBEAT_MS + 1000))
    redis.pcall('HINCRBY', stats_key, 'gaps', 1) -- counting must not fail the call
    return math.min(now, reaped_ms)
  end
  if gap_from_ms and gap_until_ms and now < gap_until_ms then return math.min(now, gap_from_ms) end
  return now
end
