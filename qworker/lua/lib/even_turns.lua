-- The usual receive from a queue with groups: at least as many stand in line as it asks for, nothing limits them but the order
-- of those that are ordered, and each gives one message. Nothing stands in line twice, so there is no line to keep, and no
-- group needs a table. Everything else goes the way of lib/turns.lua, whose rules are the same.

do
local SEATS_FROM, SEATS, ORDERED = 4503599627370496, 2147483648, 61
local byte, sub, format = string.byte, string.sub, string.format -- `format` makes one text, `..` of a number two
-- How many bytes of a record come before its first seat: its mark and its number, by the first byte of that.
local BEFORE = { [0xcc] = 3, [0xcd] = 4, [0xce] = 6 }

-- The number of a group if its record ends with `rest` and has nothing else; false otherwise.
local function number_before(rest, found)
  local mark, number_mark, a, b, c, d = byte(found, 1, 6)
  local before = BEFORE[number_mark]
  if mark ~= 0x98 or sub(found, (before or 2) + 1) ~= rest then return false end
  if before == 4 then return a * 256 + b end
  if before == 6 then return ((a * 256 + b) * 256 + c) * 256 + d end
  return before and a or number_mark < 0x80 and number_mark
end

-- Fill `turn` from the records of those in line. Nil if one needs a closer look; raises an error if one is malformed. Most
-- groups of a call differ by their numbers alone, and those that are new have one message: `lone` is what the record of such
-- a one has after its number.
local function read_records(it, count, turn, records, any_ordered)
  local window, fields, pack, unpack_limit = turn.window, turn.fields, it.pack, cmsgpack.unpack_limit
  local names, seats, last_of, stand, left, set, gone, emptied = {}, {}, {}, {}, {}, {}, {}, {}
  local last_tag, last_name = tonumber(window[2 * count]), window[2 * count - 1]
  local queue, is_counted, score_text, lone, lone_seat, next_seat, begun = it.tags().queue, false, nil, nil, nil, nil, nil
  local rest, old_first, old_last, old_busy, old_tag = nil, nil, nil, nil, nil
  for i = 1, count do
    local name, found, score = window[2 * i - 1], records[i], window[2 * i]
    names[i] = name
    local number = lone and score == score_text and number_before(lone, found)
    if number then
      local seat = lone_seat + number * SEATS
      seats[i] = seat
      if seat ~= next_seat then begun = i end
      last_of[begun], next_seat = i, seat + SEATS
      left[#left + 1], emptied[#emptied + 1] = name, name
      gone[#gone + 1], gone[#gone + 2] = format('#%d', number), fields[i]
    else
      local _, number, first, last, busy, turn_number, tag, rate_ms, wait_ms = unpack_limit(found, 8, 1)
      local mark, number_mark = byte(found, 1, 2)
      if mark ~= 0x98 or number < 0 or first > last or turn_number ~= 0 or rate_ms ~= 0 or wait_ms ~= 0 then return nil end
      local is_ordered = any_ordered and byte(name) == ORDERED
      if is_ordered then
        if busy > 0 then return nil end
        busy, is_counted = 1, true
      end
      if score ~= score_text then
        score_text = score
        score = tonumber(score)
        if score > queue then queue = score end
      end
      tag = (tag > queue and tag or queue) + 1
      if tag < last_tag or tag == last_tag and name < last_name then return nil end -- it would have a second turn
      local seat = SEATS_FROM + number * SEATS + first % SEATS
      seats[i] = seat
      if first < last then
        lone, next_seat = nil, nil
        if tag ~= old_tag or first ~= old_first or last ~= old_last or busy ~= old_busy then
          rest = sub(pack(0, first + 1, last, busy, 0, tag, 0, 0), 3)
          old_first, old_last, old_busy, old_tag = first, last, busy, tag
        end
        set[#set + 1], set[#set + 2] = fields[i], sub(found, 1, BEFORE[number_mark] or 2) .. rest
        if is_ordered then
          left[#left + 1] = name
        else
          stand[#stand + 1], stand[#stand + 2] = tag, name
        end
      else
        if seat ~= next_seat then begun = i end
        last_of[begun], next_seat, lone = i, seat + SEATS, nil
        left[#left + 1] = name
        gone[#gone + 1] = format('#%d', number)
        if busy > 0 then
          set[#set + 1], set[#set + 2] = fields[i], pack(-1, 0, -1, busy, 0, tag, 0, 0)
        else
          gone[#gone + 1] = fields[i]
          emptied[#emptied + 1] = name
          lone = not any_ordered and tag > last_tag and sub(found, (BEFORE[number_mark] or 2) + 1) or nil
          lone_seat = SEATS_FROM + first % SEATS
        end
      end
    end
  end
  turn.names, turn.seats, turn.last_of, turn.is_counted, turn.queue = names, seats, last_of, is_counted, queue
  turn.stand, turn.left, turn.set, turn.gone, turn.emptied = stand, left, set, gone, emptied
  return turn
end

-- What a turn of each of the first `count` in line does: their names, the seats of their messages, the last of those
-- whose seats follow those before, by the first, and what is to be written. Nil if it needs a closer look.
local function read_turns(it, count)
  local window, states, fields = it.window(0, count), it.states, {}
  if #window < 2 * count then return nil end
  for i = 1, count do fields[i] = ':' .. window[2 * i - 1] end
  local all = table.concat(fields, '\n')
  if find(all, '/', 1, true) then return nil end
  local any_ordered = byte(all, 2) == ORDERED or find(all, '\n:=', 1, true) ~= nil
  local records = redis.call('HMGET', states, unpack(fields))
  local sound, turn = pcall(read_records, it, count, { window = window, fields = fields }, records, any_ordered)
  return sound and turn or nil
end

-- The message at position `at`, and those whose seats follow it with nothing between them, `most` at most. None if the seats are
-- not as the records say.
local function read_messages(at, most, seats, last_of)
  local last = last_of[at] or at
  if last - at >= most then
    last_of[at + most] = last
    last = at + most - 1
  end
  local items = redis.call('ZRANGE', delayed, seats[at], seats[last], 'BYSCORE')
  return #items == last - at + 1 and items or {}
end

-- Remove the messages that were taken; several that one command has read as a range, without their bodies: there is nothing
-- else in it. Earlier rules of a user do not allow that.
local FEW = 4
local function remove(it, items, read)
  local seats, others, at = read.seats, {}, 1
  local may = redis.acl_check_cmd('ZREMRANGEBYSCORE', delayed, 0, 0)
  for _, number in ipairs(read.at_once) do
    local last = at + number - 1
    if may and number >= FEW then
      redis.call('ZREMRANGEBYSCORE', delayed, seats[at], seats[last])
    else
      for i = at, last do others[#others + 1] = items[i] end
    end
    at = last + 1
  end
  it.in_parts('ZREM', delayed, others)
end

local function write(it, lease_id, items, read)
  local names, in_parts, tags = read.names, it.in_parts, it.tags()
  local one_by_one = read.is_counted or #names == 1
  if one_by_one then
    for i, name in ipairs(names) do
      if byte(name) ~= ORDERED then names[i] = it.uncounted(name) end
    end
  end
  packed_slots.hold(it.slots, lease_id, names, one_by_one and '' or '\1')
  remove(it, items, read)
  if not it.leave_first(read.left, #read.left < #names and read.window) then in_parts('ZREM', it.turns, read.left) end
  in_parts('HSET', it.states, read.set)
  in_parts('HDEL', it.states, read.gone)
  in_parts('ZADD', it.turns, read.stand)
  tags.queue, tags.plain = read.queue, 0
  if #read.emptied > 0 then it.note_recent(read.emptied) end
  it.write_tags()
end

-- The bytes of messages if none of them expires or has a unique key, found in one search where they are short; or else nil.
local function bytes_of_usual(items)
  if #items[1] * #items > 65536 then return nil end
  local all = table.concat(items)
  return not find(all, ' x=', 1, true) and not find(all, ' u=', 1, true) and #all or nil
end

-- Fill the batch with `count` messages, in at most `most_bytes`. Returns what `turns.write` needs; nil, with nothing changed,
-- if it needs the other way.
function turns.take_each(it, batch, count, most_bytes, now)
  if count == 0 or book.all or batch.tombstones or not it.are_unlimited() then return nil end
  local read = read_turns(it, count)
  if not read then return nil end
  local seats, last_of, items, started, at_once, bytes, number = read.seats, read.last_of, {}, {}, {}, 0, 0
  while number < count do
    local some = read_messages(number + 1, chunk_size(number, bytes, most_bytes - bytes), seats, last_of)
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
        if number > 0 and bytes > most_bytes then return turns.take_each(it, batch, number, most_bytes, now) end
        number = number + 1
        items[number] = item
        local searched = #item < 4096 and item or header(item) -- see lib/turns.lua
        if find(searched, ' x=', 1, true) or find(searched, ' u=', 1, true) then
          local head = header(item)
          if over(head, now) then return nil end
          started[#started + 1] = head
        end
      end
    end
  end
  read.at_once = at_once
  for i = 1, #started do start_unique(started[i]) end
  for i = 1, next(it.records) and #read.names or 0 do it.records[read.names[i]] = nil end -- as they were before
  batch.items, batch.heads, batch.number, batch.bytes = items, items, number, bytes
  return { members = number, write = function(lease_id) write(it, lease_id, items, read) end }
end
end
