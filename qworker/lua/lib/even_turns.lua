-- The usual receive from a queue with groups: at least as many stand in line as it asks for, nothing limits them but the order
-- of those that are ordered, and each gives one message. Nothing stands in line twice, so there is no line to keep, and no
-- group needs a table. Everything else goes the way of lib/turns.lua, whose rules are the same.

do
local SEATS_FROM, SEATS, ORDERED = 4503599627370496, 2147483648, 61
local byte, sub, format = string.byte, string.sub, string.format -- `format` makes one text, `..` of a number two
-- How many bytes of a record come before its first seat: its mark and its number, by the first byte of that.
local BEFORE = { [0xcc] = 3, [0xcd] = 4, [0xce] = 6 }

-- Fill `turn` from the records of those in line. Nil if one needs a closer look; raises an error if one is malformed.
local function read_records(it, count, turn, records, any_ordered)
  local window, fields, pack, unpack_limit = turn.window, turn.fields, it.pack, cmsgpack.unpack_limit
  local names, alone, seats, stand, left, set, gone, emptied = {}, {}, {}, {}, {}, {}, {}, {}
  local last_tag, last_name = tonumber(window[2 * count]), window[2 * count - 1]
  local queue, score_text, is_counted = it.tags().queue, nil, false
  local rest, old_first, old_last, old_busy, old_tag = nil, nil, nil, nil, nil
  for i = 1, count do
    local name, found, score = window[2 * i - 1], records[i], window[2 * i]
    local mark, number_mark = byte(found, 1, 2)
    local _, number, first, last, busy, turn_number, tag, rate_ms, wait_ms = unpack_limit(found, 8, 1)
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
    names[i], alone[i], seats[i] = name, first == last, SEATS_FROM + number * SEATS + first % SEATS
    if first < last then
      -- Most groups of a call differ by their numbers alone.
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
      left[#left + 1] = name
      gone[#gone + 1] = format('#%d', number)
      if busy > 0 then
        set[#set + 1], set[#set + 2] = fields[i], pack(-1, 0, -1, busy, 0, tag, 0, 0)
      else
        gone[#gone + 1] = fields[i]
        emptied[#emptied + 1] = name
      end
    end
  end
  turn.names, turn.alone, turn.seats, turn.is_counted, turn.queue = names, alone, seats, is_counted, queue
  turn.stand, turn.left, turn.set, turn.gone, turn.emptied = stand, left, set, gone, emptied
  return turn
end

-- What a turn of each of the first `count` in line does: their names, the seats of their messages, whether a message is the
-- only one of its group, and what is to be written. Nil if it needs a closer look.
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

-- The message at position `at`, or with it those after it whose seats are next to each other, `most` at most, if each is alone
-- in its group. None if the seats are not as the records say.
local function read_messages(at, most, seats, alone)
  local last = at
  if alone[at] then
    while last - at + 1 < most and alone[last + 1] and seats[last + 1] == seats[last] + SEATS do last = last + 1 end
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
  if not it.leave_first(read.left, read.window) then in_parts('ZREM', it.turns, read.left) end
  in_parts('HSET', it.states, read.set)
  in_parts('HDEL', it.states, read.gone)
  in_parts('ZADD', it.turns, read.stand)
  tags.queue, tags.plain = read.queue, 0
  if #read.emptied > 0 then it.note_recent(read.emptied) end
  it.write_tags()
end

-- Fill the batch with `count` messages, in at most `most_bytes`. Returns what `turns.write` needs; nil, with nothing changed,
-- if it needs the other way.
function turns.take_each(it, batch, count, most_bytes, now)
  if count == 0 or book.all or batch.tombstones or not it.are_unlimited() then return nil end
  local read = read_turns(it, count)
  if not read then return nil end
  local items, started, at_once, bytes, number = {}, {}, {}, 0, 0
  while number < count do
    local some = read_messages(number + 1, chunk_size(number, bytes, most_bytes - bytes), read.seats, read.alone)
    if #some == 0 then return nil end
    at_once[#at_once + 1] = #some
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
  read.at_once = at_once
  for i = 1, #started do start_unique(started[i]) end
  for i = 1, #read.names do it.records[read.names[i]] = nil end -- as they were before
  batch.items, batch.heads, batch.number, batch.bytes = items, items, number, bytes
  return { members = number, write = function(lease_id) write(it, lease_id, items, read) end }
end
end
