-- The short way to receive at most one message and to ack others, see lib/lone_acks.lua: for a queue with no attribute but
-- its visibility, no waiting suspect and no tombstone. Returns nil for any other.
local function settle_receive_alone()
  local ready, suspect, delayed, unacked, wake, dead = KEYS[1], KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15]
  local meta, stats, cancelled, key = KEYS[16], KEYS[17], KEYS[19], KEYS[#KEYS]
  local acked = #KEYS - 21
  local count, prefix = whole(ARGV[3], 0, 1000), string.sub(meta, 1, -5) .. 'lease:'
  local id = string.sub(key, 1, #prefix) == prefix and string.sub(key, #prefix + 1) or ''
  if ARGV[2] ~= '0' or not count or not string.find(ARGV[5], '^[012]$')
    or not string.find(id, '^[%w._-]+$') or not acks_alone(7, prefix, acked) then
    return nil
  end
  local left, item = 0, nil
  if count > 0 then
    left = redis.pcall('LLEN', ready)
    if type(left) ~= 'number' or count > 1 and left > 1 then return nil end
  end
  local set = redis.pcall('HMGET', meta, 'paused', 'levels', 'journal', 'visibility_ms')
  if set.err or set[1] or set[2] or set[3] then return nil end
  local visibility_ms = whole(ARGV[4] ~= '' and ARGV[4] or set[4] or DEFAULT_VISIBILITY_MS, 1, MAX_VISIBILITY_MS)
  if not visibility_ms or not have_one_field(acked) then return nil end
  -- None of these exists, or only the dead letters: if those cannot be written, nothing is delivered.
  local there = redis.call('EXISTS', suspect, cancelled, key, dead)
  if there > 1 or there == 1 and redis.call('TYPE', dead).ok ~= 'stream' then return nil end
  if left > 0 then
    left, item = left - 1, redis.call('LINDEX', ready, 0)
    if string.sub(item, 1, 3) ~= 'q1 ' then return nil end
    local flags = string.find(item, '=', 1, true)
    if flags then
      local stop = string.find(item, '\n', 1, true)
      if not stop or flags < stop and string.find(string.sub(item, 1, stop), ' x=', 1, true) then return nil end
    end
  end
  local tokens, leases, now = redis.pcall('LLEN', wake), redis.pcall('ZCARD', unacked), clock(ARGV[1], meta)
  if type(tokens) ~= 'number' or type(leases) ~= 'number' or not now then return nil end
  local deadline, hint_ms = count > 0 and now + visibility_ms or 0, -2
  if left > 0 then
    hint_ms = 0
  elseif count > 0 then
    local due = redis.pcall('ZRANGE', delayed, 0, 0, 'WITHSCORES')
    if due.err then return nil end
    if due[2] then hint_ms = math.max(1, tonumber(due[2]) - now) end
  end

  -- The first write checks the type of its key; those of the other keys are known.
  local counter, amount = 'acked', acked
  if item then counter, amount = 'received', 1 end
  if amount > 0 and type(redis.pcall('HINCRBY', stats, counter, amount)) ~= 'number' then return nil end
  if item then
    redis.call('HSET', key, '0', item)
    redis.call('ZADD', unacked, text(deadline), id)
    redis.call('LPOP', ready)
    -- The reaper's watch for gaps starts with the first lease; see grace.lua.
    if leases == 0 then redis.call('HSET', stats, 'reaped_ms', text(now)) end
  end
  local settled, degraded = ack_alone(acked, prefix, item and 0 or acked, item and 1 or 0)
  if left > 0 and tokens == 0 then
    if type(redis.pcall('RPUSH', wake, '1')) ~= 'number' then degraded = 1 end
  elseif item and left == 0 and tokens > 0 and ARGV[6] ~= '' then
    redis.pcall('DEL', wake)
  end
  return { 'OK', text(now), text(deadline), left, text(hint_ms), 0, degraded, settled, { item }, {}, 0, 0 }
end
local alone = settle_receive_alone()
if alone then return alone end
