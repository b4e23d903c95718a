-- Write the item into the new lease, which must not exist, with its deadline: under a key of its own, or in the `room` of a
-- lease whose message of field 0 is acked by that. False, with nothing written, if the new one exists or that message is
-- gone. Other fields of the room, which only another program can have written, move along and so keep a deadline.
local function made(key, room, item, deadlines, deadline, id)
  if room and redis.pcall('RENAMENX', room, key) ~= 1 then return false end
  if redis.pcall('ZADD', deadlines, 'NX', deadline, id) == 1 then
    if not room and redis.pcall('HSETNX', key, '0', item) == 1 then return true end
    local added = room and redis.pcall('HSET', key, '0', item)
    if added == 0 then return true end
    if added == 1 then redis.call('HDEL', key, '0') end
    redis.call('ZREM', deadlines, id)
  end
  if room then redis.call('RENAME', key, room) end
  return false
end
-- The short way to receive at most one message and to ack others, see lib/lone_acks.lua: for a queue with no attributes but
-- its visibility and priorities, no waiting suspect and no tombstone. Returns nil for any other.
local function settle_receive_alone()
  local ready, deadlines, wake, dead, meta, stats = KEYS[1], KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17]
  local key, leases, suspects = KEYS[#KEYS], #KEYS - 21, ARGV[5]
  local count, id = ARGV[3] == '1' and 1 or whole(ARGV[3], 0, 1000), string.match(key, LEASE_ID)
  if ARGV[2] ~= '' and ARGV[2] ~= '0' or not count or not id or suspects ~= '0' and suspects ~= '1' and suspects ~= '2'
    or not acks_alone(7, leases) then
    return nil
  end
  local left, item = 0, nil
  if count > 0 then
    left = redis.pcall('LLEN', ready)
    if type(left) ~= 'number' or count > 1 and left > 1 then return nil end
  end
  -- EXISTS counts a key as often as it is named: 1 for attributes, 2 for a token, 4 or more for what is looked at closely.
  local suspect, cancelled = KEYS[11], KEYS[19]
  local there = redis.call('EXISTS', meta, wake, wake, dead, dead, dead, dead, suspect, suspect, suspect, suspect,
    cancelled, cancelled, cancelled, cancelled)
  -- If dead letters cannot be written, nothing is delivered.
  if there > 3 and (redis.call('EXISTS', suspect, cancelled) > 0 or redis.call('TYPE', dead).ok ~= 'stream') then return nil end
  local visibility_ms, levels = ARGV[4], nil
  if there % 2 == 1 then
    local set = redis.pcall('HMGET', meta, 'paused', 'journal', 'levels', 'visibility_ms')
    if set.err or set[1] or set[2] then return nil end
    levels = set[3]
    if visibility_ms == '' then visibility_ms = set[4] or '' end
  end
  visibility_ms = visibility_ms == '' and DEFAULT_VISIBILITY_MS or whole(visibility_ms, 1, MAX_VISIBILITY_MS)
  if not visibility_ms then return nil end
  if levels and count > 0 then
    for level = 1, 9 do
      if string.find(levels, level, 1, true) then
        local waiting = redis.pcall('LLEN', KEYS[level + 1])
        if type(waiting) ~= 'number' then return nil end
        if waiting > 0 then ready, left = KEYS[level + 1], left + waiting end
      end
    end
    if count > 1 and left > 1 then return nil end
  end
  if left > 0 then
    left, item = left - 1, redis.call('LINDEX', ready, 0)
    -- A header with flags may say until when the message is to be delivered.
    if not string.find(item, '^q1 [^=\n]*\n')
      and (not string.find(item, '^q1 [^\n]*\n') or string.find(item, '^[^\n]* [xl]=')) then
      return nil
    end
  end
  -- One acked message makes room for the next: its lease gets the new name and item. Otherwise leases are looked at first.
  local room = item and leases == 1 and KEYS[21]
  local ids = room and { string.match(room, LEASE_ID) } or not room and held_alone(leases)
  local received, acked, stored, unacked
  if room then
    received, acked, stored = counters(redis.pcall('HMGET', stats, 'received', 'acked', 'stored'))
  else
    received, acked, stored, unacked = counters(redis.pcall('HMGET', stats, 'received', 'acked', 'stored', 'unacked'))
  end
  local now, stamp = clock(ARGV[1], meta)
  if not ids or #ids ~= leases or not received or not now then return nil end
  local deadline, hint = count > 0 and now + visibility_ms or 0, left > 0 and 0 or -2
  if count > 0 and not item then
    -- `made` refuses a lease that exists; without an item it is not called.
    if redis.call('EXISTS', key) == 1 then return nil end
    local due = redis.pcall('ZRANGE', KEYS[12], 0, 0, 'WITHSCORES')
    if due.err then return nil end
    if due[2] then hint = math.min(math.max(1, tonumber(due[2]) - now), MAX_MS) end
  end

  -- The first write to a key checks its type, or a read; on failure the earlier writes are undone.
  local first, counted = nil, 0
  if room then
    if not made(key, room, item, deadlines, deadline, id) then return nil end
    first = redis.call('ZREM', deadlines, ids[1]) == 0
    redis.call('LPOP', ready)
    counted = redis.pcall('HSET', stats, 'received', received + 1, 'acked', acked + 1, 'stored', stored - 1)
  else
    if item then
      if not made(key, nil, item, deadlines, deadline, id) then return nil end
      redis.call('LPOP', ready)
      received, unacked = received + 1, unacked + 1
    elseif leases > 0 and type(redis.pcall('ZCARD', deadlines)) ~= 'number' then
      return nil
    end
    first = item
    if leases > 0 then
      redis.call('DEL', unpack(KEYS, 21, 20 + leases))
      if redis.call('ZREM', deadlines, unpack(ids)) > 0 then first = nil end
    end
    if leases == 0 then
      if item then counted = redis.pcall('HSET', stats, 'received', received, 'unacked', unacked) end
    else
      counted = redis.pcall('HSET', stats, 'received', received, 'acked', acked + leases, 'stored', stored - leases,
        'unacked', unacked - leases)
    end
  end
  local degraded = type(counted) == 'number' and 0 or 1
  -- The reaper's watch for gaps starts with the first lease; see grace.lua.
  if first and redis.call('ZCARD', deadlines) == 1 then redis.pcall('HSET', stats, 'reaped_ms', stamp) end
  if left > 0 and there % 4 < 2 then
    if type(redis.pcall('RPUSH', wake, '1')) ~= 'number' then degraded = 1 end
  elseif item and left == 0 and there % 4 > 1 and ARGV[6] ~= '' then
    redis.pcall('LTRIM', wake, 1, 0)
  end
  -- A table in a reply costs the server as much as a command.
  if ARGV[2] == '' then return { 'ALONE', stamp, deadline, left, hint, degraded, item } end
  local settled = {}
  for i = 1, leases do settled[i] = 1 end
  return { 'OK', stamp, text(deadline), left, text(hint), 0, degraded, settled, { item }, {}, 0, 0 }
end
local alone = settle_receive_alone()
if alone then return alone end
