-- The usual receive from a queue with groups: nothing limits them but the order of those that are ordered, and each of those
-- that are next gives one message. Nothing stands in line twice, so there is no line to keep, and no group needs a table. The
-- short way of a receive takes it before the functions of the long way are created; everything else goes the way of
-- lib/turns.lua, whose rules are the same.

-- Its functions are made here, as a queue without groups needs none. The keys are those of lib/groups.lua, and `stored` is of
-- lib/group_records.lua.
local function even_turns(states, turns, slots, stored)
  local ORDERED = 61 -- =
  local FEW = 4 -- messages that are not removed as a range
  local SHORT = 4096 -- bytes of a message that is searched whole: to cut off its header takes longer
  local redis, byte, find, sub = redis, string.byte, string.find, string.sub -- globals are looked up at each use
  local delayed = KEYS[12]
  local it = {}

  -- What a turn of each of the first `count` in line does: their names, the seats of their messages, the last of those
  -- whose seats follow those before, by the first, and what is to be written. Nil if it needs a closer look.
  local function read_turns(queue, count)
    local names, fields, line = redis.call('ZRANGE', turns, 0, count - 1), {}, nil
    if #names < count then return nil end
    for i = 1, count do fields[i] = ':' .. names[i] end
    local all = table.concat(fields, '\n')
    if find(all, '/', 1, true) then return nil end
    local any_ordered = byte(all, 2) == ORDERED or find(all, '\n:=', 1, true) ~= nil
    -- Most have the same virtual time: to make a text of each takes longer than to ask for two.
    local score = redis.call('ZSCORE', turns, names[1])
    if count > 1 and redis.call('ZSCORE', turns, names[count]) ~= score then
      line = redis.call('ZRANGE', turns, 0, count - 1, 'WITHSCORES')
    end
    local records, turn = redis.call('HMGET', states, unpack(fields)), { names = names, fields = fields }
    local sound, read = pcall(even_records, stored.pack, turn, queue, count, records, score, line, any_ordered)
    return sound and read or nil
  end

  -- The message at position `at`, and those whose seats follow it with nothing between them, `most` at most. None if the seats
  -- are not as the records say.
  local function read_messages(at, most, seats, last_of)
    local last = last_of[at] or at
    if last - at >= most then
      last_of[at + most] = last
      last = at + most - 1
    end
    local items = redis.call('ZRANGE', delayed, seats[at], seats[last], 'BYSCORE')
    return #items == last - at + 1 and items or {}
  end

  -- The bytes of messages if none of them expires or has a unique key, found in one search where they are short; or else nil.
  local function bytes_of_usual(items)
    if #items[1] * #items > 65536 then return nil end
    local all = table.concat(items)
    return not find(all, ' x=', 1, true) and not find(all, ' u=', 1, true) and #all or nil
  end

  -- Read the next messages: `count` of them, 500 at most, or one of each of the `standing` groups in line if they are fewer,
  -- in at most `most_bytes`. `may_take(item)` is asked about those that may expire or have a unique key. Returns the turn: its
  -- `items` and their `bytes`, which of them are `flagged`, and how many messages are `waiting` in groups that stay in line.
  -- Nil if it needs the other way.
  function it.read(queue, standing, count, most_bytes, may_take)
    local wanted = math.min(count, standing)
    local turn = wanted > 0 and read_turns(queue, wanted)
    if not turn or standing < count and turn.stand[1] then return nil end
    local seats, last_of, items, flagged, at_once, bytes, number = turn.seats, turn.last_of, {}, {}, {}, 0, 0
    while number < wanted do
      local most = number == 0 and 1 or math.max(1, math.min(33, math.ceil((most_bytes - bytes) * number / math.max(bytes, 1))))
      local some = read_messages(number + 1, most, seats, last_of)
      if #some == 0 then return nil end
      at_once[#at_once + 1] = #some
      local usual = #some >= FEW and bytes_of_usual(some)
      if usual and bytes + usual <= most_bytes then
        bytes = bytes + usual
        for i = 1, #some do items[number + i] = some[i] end
        number = number + #some
      else
        for i = 1, #some do
          local item = some[i]
          bytes = bytes + #item
          if number > 0 and bytes > most_bytes then return it.read(queue, standing, number, most_bytes, may_take) end
          number = number + 1
          items[number] = item
          local searched = #item < SHORT and item or sub(item, 1, find(item, '\n', 1, true) or 0)
          if find(searched, ' x=', 1, true) or find(searched, ' u=', 1, true) then
            if not may_take(item) then return nil end
            flagged[#flagged + 1] = item
          end
        end
      end
    end
    turn.items, turn.bytes, turn.flagged, turn.at_once, turn.standing = items, bytes, flagged, at_once, standing
    return turn
  end

  -- How many messages may run after a turn, as `running` of lib/group_waits.lua counts them. Nil if a parent is among those
  -- in line.
  function it.left(turn)
    local stay = turn.standing - #turn.left
    if stay == 0 or stay > 16 then return stay end
    local number, names = turn.waiting, redis.call('ZRANGE', turns, #turn.names, -1)
    if #names == 0 then return number end
    local fields = {}
    for i = 1, #names do
      if find(names[i], '/', 1, true) then return nil end
      fields[i] = ':' .. names[i]
    end
    for i, found in ipairs(redis.call('HMGET', states, unpack(fields))) do
      local known, first, last = stored.unpack(found)
      number = number + (known and byte(names[i]) ~= ORDERED and math.max(1, last - first + 1) or 1)
    end
    return number
  end

  -- Remove the messages that were taken; several that one command has read as a range, without their bodies: there is nothing
  -- else in it. Earlier rules of a user do not allow that.
  local function remove(turn)
    local seats, items, others, at = turn.seats, turn.items, {}, 1
    local may = redis.acl_check_cmd('ZREMRANGEBYSCORE', delayed, 0, 0)
    for _, number in ipairs(turn.at_once) do
      local last = at + number - 1
      if may and number >= FEW then
        redis.call('ZREMRANGEBYSCORE', delayed, seats[at], seats[last])
      else
        for i = at, last do others[#others + 1] = items[i] end
      end
      at = last + 1
    end
    if #others > 0 then redis.call('ZREM', delayed, unpack(others)) end
  end

  -- Those that have left the line are often the first that stand there: then these are removed as a range.
  local function leave(turn)
    local left, names = turn.left, turn.names
    for i = 1, left ~= names and #left or 0 do
      if left[i] ~= names[i] then return redis.call('ZREM', turns, unpack(left)) end
    end
    if #left > 0 then redis.call('ZREMRANGEBYRANK', turns, 0, #left - 1) end
  end

  -- Write a turn whose messages are in the lease, and the virtual times.
  function it.write(turn, lease_id, tags)
    local names, one_by_one = turn.names, turn.is_counted or #turn.names == 1
    local held = one_by_one and {} or names
    for i = 1, one_by_one and #names or 0 do held[i] = byte(names[i]) ~= ORDERED and '\1' .. names[i] or names[i] end
    stored.hold(slots, lease_id, held, one_by_one and '' or '\1')
    remove(turn)
    leave(turn)
    if #turn.set > 0 then redis.call('HSET', states, unpack(turn.set)) end
    if #turn.gone > 0 then redis.call('HDEL', states, unpack(turn.gone)) end
    if #turn.stand > 0 then redis.call('ZADD', turns, unpack(turn.stand)) end
    tags.queue, tags.plain = turn.queue, 0
    if #turn.emptied > 0 then stored.note_recent(tags, turn.emptied) end
    stored.write_tags(tags)
  end
  return it
end
