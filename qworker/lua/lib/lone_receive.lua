-- The short way to receive and to ack, see lib/lone_acks.lua: for a queue with no attributes but its visibility, priorities,
-- journal and groups (see lib/lone_turns.lua), no waiting suspect, and no cancelled message among the next. Returns nil for any
-- other.
local function settle_receive_short()
  local redis, KEYS, ARGV = redis, KEYS, ARGV -- globals are looked up at each use
  local ready, deadlines, wake, dead, meta, stats = KEYS[1], KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17]
  local key, leases, suspects, asked = KEYS[#KEYS], #KEYS - 21, ARGV[5], ARGV[2]
  local count, id = ARGV[3] == '1' and 1 or whole(ARGV[3], 0, 1000), string.match(key, LEASE_ID)
  if asked ~= '' and asked ~= '0' and asked ~= 'each' or not count or not id
    or suspects ~= '0' and suspects ~= '1' and suspects ~= '2' then
    return nil
  end
  local acks = nil
  if not acks_alone(7, leases) then
    acks = acks_by_index(7, leases)
    if not acks then return nil end
  end
  local left = count > 0 and redis.pcall('LLEN', ready) or 0
  if type(left) ~= 'number' then return nil end
  -- EXISTS counts a key as often as it is named: 1 for attributes, 2 for a token, 4 or more for what is looked at closely.
  -- The new lease is one of those, unless it may come about by RENAMENX, which sees to that.
  local suspect, cancelled, renamed, there = KEYS[11], KEYS[19], not acks and leases == 1 and count < 2, nil
  if renamed then
    there = redis.call('EXISTS', meta, wake, wake, dead, dead, dead, dead, suspect, suspect, suspect, suspect,
      cancelled, cancelled, cancelled, cancelled)
  else
    there = redis.call('EXISTS', meta, wake, wake, dead, dead, dead, dead, suspect, suspect, suspect, suspect,
      cancelled, cancelled, cancelled, cancelled, key, key, key, key)
  end
  local visibility_ms, tombstones, levels, lists, book, groups, word = ARGV[4], nil, nil, nil, nil, false, 'SHORT'
  if there > 3 then
    if redis.call('EXISTS', suspect, key) > 0 then return nil end
    -- If dead letters cannot be written, nothing is delivered.
    local letters, stones = redis.call('TYPE', dead).ok, redis.call('TYPE', cancelled).ok
    if letters ~= 'stream' and letters ~= 'none' or stones ~= 'zset' and stones ~= 'none' then return nil end
    tombstones = stones == 'zset'
  end
  if there % 2 == 1 then
    local set = redis.pcall('HMGET', meta, 'paused', 'journal', 'levels', 'visibility_ms', 'groups')
    if set.err or set[1] then return nil end
    if set[2] == 'all' or set[2] == 'outcomes' then
      book, word = short_journal({ journal = KEYS[20], meta = meta, stats = stats, all = set[2] == 'all' }), 'NOTED'
      if not book then return nil end
    end
    if set[5] then
      groups, word = not book and short_groups(meta, KEYS[12], count), 'TURNS'
      if not groups then return nil end
    end
    levels = set[3]
    if visibility_ms == '' then visibility_ms = set[4] or '' end
  end
  visibility_ms = visibility_ms == '' and DEFAULT_VISIBILITY_MS or whole(visibility_ms, 1, MAX_VISIBILITY_MS)
  if not visibility_ms then return nil end
  local waiting = left
  if levels and count > 0 then
    lists = { ready, left }
    for level = 1, 9 do
      if string.find(levels, level, 1, true) then
        local length = redis.pcall('LLEN', KEYS[level + 1])
        if type(length) ~= 'number' then return nil end
        if length > 0 then
          ready, waiting, left = KEYS[level + 1], length, left + length
          lists[#lists + 1], lists[#lists + 2] = ready, length
        end
      end
    end
  end
  local item, items, taken, number, heads = nil, nil, nil, 0, nil
  if groups then
    if left > 0 then return nil end -- messages without a group take turns with the others
    if count > 0 then
      items, left = groups.read()
      if not items then return nil end
      item, number = items[1], #items
      if number < 2 then items = nil end
    end
  elseif left > 0 then
    item, number = redis.call('LINDEX', ready, 0), 1
    local stop = is_plain(item)
    if not stop then return nil end
    if book and book.all then heads = { string.sub(item, 1, stop - 1) } end
    if count > 1 and left > 1 and #item < MAX_BYTES then
      items, taken = with_others(lists or { ready, left }, item, math.min(count, left), heads)
      if not items then return nil end
      number = #items
    end
    left = left - number
  end
  if tombstones and item and marked_in(items or { item }, cancelled) then return nil end
  -- One acked message makes room for the next: its lease gets the new name and item. Otherwise leases are looked at first.
  local room, ids = item and not items and not acks and leases == 1 and KEYS[21], nil
  if room then
    ids = { string.match(room, LEASE_ID) }
  elseif acks then
    ids = acks.held()
  else
    ids = held_alone(leases)
  end
  if not ids or #ids ~= leases then return nil end
  local slots = groups and groups.slots_of(ids, acks)
  if slots == nil then return nil end
  local received, acked, stored, unacked, settled
  if room then
    received, acked, stored = counters(redis.pcall('HMGET', stats, 'received', 'acked', 'stored'))
  else
    received, acked, stored, unacked = counters(redis.pcall('HMGET', stats, 'received', 'acked', 'stored', 'unacked'))
  end
  local now, stamp = clock(ARGV[1], meta)
  if not received or not now or groups and groups.is_late(now) then return nil end
  local deadline, hint = count > 0 and now + visibility_ms or 0, left > 0 and 0 or -2
  if not item and count > 0 then
    -- Without an item nothing is renamed.
    if renamed and redis.call('EXISTS', key) == 1 then return nil end
    local due = redis.pcall('ZRANGE', KEYS[12], 0, 0, 'WITHSCORES')
    if due.err then return nil end
    if due[2] and not (groups and groups.is_seat(tonumber(due[2]))) then hint = math.min(math.max(1, tonumber(due[2]) - now), MAX_MS) end
  end

  local rows
  if book then
    -- Acks whose events the caller does not write are for the long way, which reads the messages.
    for l = 1, leases do
      if not acks or not acks.told[l] then return nil end
    end
    book.now, book.stamp = now, stamp
    rows = book.rows('delivered ' .. stamp .. ' - - - -', heads or {})
    if not rows then return nil end
  end

  -- The first write to a key checks its type, or a read; on failure the earlier writes are undone.
  if item then
    if not made(key, room, item, items, asked == 'each', deadlines, deadline, id) then return nil end
    if groups then
      groups.write(id, now)
    elseif taken then
      for i = 1, #taken, 2 do
        local list = taken[i]
        redis.call('LTRIM', list, taken[i + 1], -1)
      end
    else
      redis.call('LTRIM', ready, 1, -1)
    end
  elseif leases > 0 and type(redis.pcall('ZCARD', deadlines)) ~= 'number' then
    return nil
  end
  local first, counted = item, 0
  if slots then groups.free(slots) end
  if room then
    if redis.call('ZREM', deadlines, ids[1]) > 0 then first = nil end
    counted = redis.pcall('HSET', stats, 'received', received + 1, 'acked', acked + 1, 'stored', stored - 1)
  else
    local done = leases
    if acks then
      done, settled, ids = acks.take(ids, stats)
    elseif leases > 0 then
      redis.call('DEL', unpack(KEYS, 21, 20 + leases))
    end
    if ids[1] and redis.call('ZREM', deadlines, unpack(ids)) > 0 then first = nil end
    if leases > 0 then
      counted = redis.pcall('HSET', stats, 'received', received + number, 'acked', acked + done, 'stored', stored - done,
        'unacked', unacked + number - done)
    elseif item then
      counted = redis.pcall('HSET', stats, 'received', received + number, 'unacked', unacked + number)
    end
  end
  local degraded = type(counted) == 'number' and 0 or 1
  if book then
    for l = 1, leases do book.acked(acks.told[l], settled[l]) end
    degraded = math.max(degraded, book.write(rows, ARGV[6]))
  end
  -- The reaper's watch for gaps starts with the first lease; see grace.lua.
  if first and redis.call('ZCARD', deadlines) == 1 then redis.pcall('HSET', stats, 'reaped_ms', stamp) end
  if left > 0 and there % 4 < 2 then
    local EIGHT = items and { '1', '1', '1', '1', '1', '1', '1', '1' } or nil -- as many as `ring` of lib/counters.lua leaves
    local rung = items and redis.pcall('RPUSH', wake, unpack(EIGHT, 1, math.min(left, 8))) or redis.pcall('RPUSH', wake, '1')
    if type(rung) ~= 'number' then degraded = 1 end
  elseif item and left == 0 and there % 4 > 1 and ARGV[6] ~= '' then
    redis.pcall('LTRIM', wake, 1, 0)
  end
  -- A table in a reply costs the server as much as a command.
  if asked ~= '0' then
    settled = settled and table.concat(settled, ' ') or ''
    if items then return { word, stamp, deadline, left, hint, degraded, settled, unpack(items) } end
    return { word, stamp, deadline, left, hint, degraded, settled, item }
  end
  if not settled then
    settled = {}
    for i = 1, leases do settled[i] = 1 end
  end
  return { 'OK', stamp, text(deadline), left, text(hint), 0, degraded, settled, items or { item }, {}, 0, book and 1 or 0,
    groups and 0 or nil }
end
local short = settle_receive_short()
if short then return short end
