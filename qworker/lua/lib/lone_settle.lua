-- The short way of a settle, see lib/lone_acks.lua: of messages that were delivered alone, or of leases as a whole.
local function settle_short()
  local meta, stats, leases, acks, slots = KEYS[16], KEYS[17], #KEYS - 20, nil, nil
  if leases < 1 then return nil end
  if not acks_alone(3, leases) then
    acks = acks_by_index(3, leases)
    if not acks then return nil end
  end
  local mode = redis.pcall('HGET', meta, 'journal')
  if mode then
    if mode ~= 'off' then return nil end
    slots = redis.call('HEXISTS', meta, 'groups') == 1 and string.sub(meta, 1, -5) .. 'slots'
  end
  local ids, fields
  if acks then
    ids = acks.held()
    if not ids then return nil end
    for l = 1, leases do
      if not acks.is_whole(l) then return nil end
    end
  else
    ids = held_alone(leases)
    if not ids then return nil end
  end
  if slots then
    fields = uncounted(slots, ids, acks)
    if not fields then return nil end
  end
  local acked, stored, unacked = counters(redis.pcall('HMGET', stats, 'acked', 'stored', 'unacked'))
  local now, stamp = clock(ARGV[1], meta)
  if not acked or not now or type(redis.pcall('ZCARD', KEYS[13])) ~= 'number' then return nil end
  local done, settled, results = leases, {}, nil
  if acks then
    done, settled = acks.take(ids, stats)
  else
    redis.call('DEL', unpack(KEYS, 21, 20 + leases))
    for i = 1, leases do settled[i] = 1 end
  end
  redis.call('ZREM', KEYS[13], unpack(ids))
  if slots then redis.call('HDEL', slots, unpack(fields)) end
  local counted = redis.pcall('HSET', stats, 'acked', acked + done, 'stored', stored - done, 'unacked', unacked - done)
  if acks then
    results = {}
    for i = 1, acks.named() do results[i] = 1 end
  end
  return { 'OK', stamp, type(counted) == 'number' and 0 or 1, settled, results or settled }
end
local short = settle_short()
if short then return short end
