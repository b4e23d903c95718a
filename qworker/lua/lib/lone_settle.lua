-- The short way of a settle, see lib/lone_acks.lua.
local function settle_alone()
  local meta, stats, leases = KEYS[16], KEYS[17], #KEYS - 20
  if leases < 1 or not acks_alone(3, leases) or redis.pcall('HGET', meta, 'journal') then return nil end
  local ids = held_alone(leases)
  if not ids then return nil end
  local acked, stored, unacked = counters(redis.pcall('HMGET', stats, 'acked', 'stored', 'unacked'))
  local now, stamp = clock(ARGV[1], meta)
  if not acked or not now or type(redis.pcall('ZCARD', KEYS[13])) ~= 'number' then return nil end
  redis.call('DEL', unpack(KEYS, 21, 20 + leases))
  redis.call('ZREM', KEYS[13], unpack(ids))
  local counted = redis.pcall('HSET', stats, 'acked', acked + leases, 'stored', stored - leases, 'unacked', unacked - leases)
  local settled = {}
  for i = 1, leases do settled[i] = 1 end
  return { 'OK', stamp, type(counted) == 'number' and 0 or 1, settled, settled }
end
local alone = settle_alone()
if alone then return alone end
