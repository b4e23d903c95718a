-- The usual receive from a queue with groups: at least as many stand in line as it asks for, nothing limits them but the order
-- of those that are ordered, and each gives one message. Nothing stands in line twice, so there is no line to keep, and no
-- group needs a table. Everything else goes the way of lib/turns.lua, whose rules are the same.

do
local SEATS_FROM, SEATS, ORDERED = 4503599627370496, 2147483648, 61
local byte = string.byte

-- What a turn of each of the first `count` in line does: their names, the seats of their messages, whether a message is the
-- only one of its group, and what is to be written. Nil if it needs a closer look.
local function read_turns(it, count)
  local window, states, fields, alone = it.window(0, count), it.states, {}, {}
  if #window < 2 * count then return nil end
  for i = 1, count do fields[i] = ':' .. window[2 * i - 1] end
  local seats = redis.call('HMGET', states, unpack(fields)) -- the records, until each is read
  local names, stand, left, set, gone, emptied = {}, {}, {}, {}, {}, {}
  local last_tag, last_name, is_counted = tonumber(window[2 * count]), window[2 * count - 1], false
  local queue, score_text = it.tags().queue, nil
  local values_of, pack = it.values_of, it.pack
  for i = 1, count do
    local name, number, first, last, busy, turn, tag, rate_ms, wait_ms = window[2 * i - 1], values_of(seats[i])
    if not number or number < 0 or first > last or turn ~= 0 or rate_ms ~= 0 or wait_ms ~= 0 or find(name, '/', 1, true) then
      return nil
    end
    local is_ordered = byte(name) == ORDERED
    if is_ordered then
      if busy > 0 then return nil end
      busy, is_counted = 1, true
    end
    if window[2 * i] ~= score_text then
      score_text = window[2 * i]
      local score = tonumber(score_text)
      if score > queue then queue = score end
    end
    tag = (tag > queue and tag or queue) + 1
    if tag < last_tag or tag == last_tag and name < last_name then return nil end -- it would have a second turn
    names[i], alone[i], seats[i] = name, first == last, SEATS_FROM + number * SEATS + first % SEATS
    if first < last then
      set[#set + 1] = fields[i]
      set[#set + 1] = pack(number, first + 1, last, busy, 0, tag, 0, 0)
      if is_ordered then
        left[#left + 1] = name
      else
        stand[#stand + 1] = tag
        stand[#stand + 1] = name
      end
    else
      left[#left + 1] = name
      gone[#gone + 1] = '#' .. number
      if busy > 0 then
        set[#set + 1] = fields[i]
        set[#set + 1] = pack(-1, 0, -1, busy, 0, tag, 0, 0)
      else
        gone[#gone + 1] = fields[i]
        emptied[#emptied + 1] = name
      end
    end
  end
  return {
    window = window, names = names, seats = seats, alone = alone, is_counted = is_counted, queue = queue,
    stand = stand, left = left, set = set, gone = gone, emptied = emptied,
  }
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

local function write(it, lease_id, items, read)
  local names, in_parts, tags = read.names, it.in_parts, it.tags()
  local one_by_one = read.is_counted or #names == 1
  if one_by_one then
    for i, name in ipairs(names) do
      if byte(name) ~= ORDERED then names[i] = it.uncounted(name) end
    end
  end
  packed_slots.hold(it.slots, lease_id, names, one_by_one and '' or '\1')
  in_parts('ZREM', delayed, items)
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
  local items, started, bytes, number = {}, {}, 0, 0
  while number < count do
    local some = read_messages(number + 1, chunk_size(number, bytes, most_bytes - bytes), read.seats, read.alone)
    if #some == 0 then return nil end
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
  for i = 1, #started do start_unique(started[i]) end
  for i = 1, #read.names do it.records[read.names[i]] = nil end -- as they were before
  batch.items, batch.heads, batch.number, batch.bytes = items, items, number, bytes
  return { members = number, write = function(lease_id) write(it, lease_id, items, read) end }
end
end
