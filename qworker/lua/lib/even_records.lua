-- What the usual receive from a queue with groups makes of their records, see lib/even_turns.lua.

-- Fill `turn` from the records of those in line. Nil if one needs a closer look; raises an error if one is malformed. Most
-- groups of a call differ by their numbers alone, and those that are new have one message: `lone` is what the record of
-- such a one has after its number. `line`: names and the texts of their virtual times; nil if all have that of `score`.
local function even_records(pack, turn, queue, count, records, score, line, any_ordered)
  local SEATS_FROM, SEATS, ORDERED = 4503599627370496, 2147483648, 61
  local byte, sub, unpack_limit = string.byte, string.sub, cmsgpack.unpack_limit -- globals are looked up at each use
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

  local names, fields = turn.names, turn.fields
  local seats, last_of, stand, set = {}, {}, {}, {}
  local last_tag, last_name = tonumber(line and line[2 * count] or score), names[count]
  -- What leaves the line, is forgotten, and has run empty. Usually that is all: there are tables from the first other one on.
  local left, gone, emptied = nil, nil, nil
  local function tell_apart(before)
    left, gone, emptied = { unpack(names, 1, before) }, { unpack(fields, 1, before) }, { unpack(names, 1, before) }
  end
  local is_counted, score_text, lone, lone_seat, next_seat, begun, waiting = false, nil, nil, nil, nil, nil, 0
  local rest, old_first, old_last, old_busy, old_tag = nil, nil, nil, nil, nil
  for i = 1, count do
    local name, found = names[i], records[i]
    if line then score = line[2 * i] end
    local number = lone and score == score_text and number_before(lone, found)
    if number then
      local seat = lone_seat + number * SEATS
      seats[i] = seat
      if seat ~= next_seat then begun = i end
      last_of[begun], next_seat = i, seat + SEATS
      if left then left[#left + 1], gone[#gone + 1], emptied[#emptied + 1] = name, fields[i], name end
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
        local from = tonumber(score)
        if from > queue then queue = from end
      end
      tag = (tag > queue and tag or queue) + 1
      if tag < last_tag or tag == last_tag and name < last_name then return nil end -- it would have a second turn
      local seat = SEATS_FROM + number * SEATS + first % SEATS
      seats[i] = seat
      if not left and (first < last or busy > 0) then tell_apart(i - 1) end
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
          waiting = waiting + last - first
        end
      else
        if seat ~= next_seat then begun = i end
        last_of[begun], next_seat, lone = i, seat + SEATS, nil
        if left then left[#left + 1] = name end
        if busy > 0 then
          set[#set + 1], set[#set + 2] = fields[i], pack(-1, 0, -1, busy, 0, tag, 0, 0)
        else
          if left then gone[#gone + 1], emptied[#emptied + 1] = fields[i], name end
          lone = not any_ordered and tag > last_tag and sub(found, (BEFORE[number_mark] or 2) + 1) or nil
          lone_seat = SEATS_FROM + first % SEATS
        end
      end
    end
  end
  turn.seats, turn.last_of, turn.is_counted, turn.queue, turn.waiting = seats, last_of, is_counted, queue, waiting
  turn.stand, turn.set = stand, set
  turn.left, turn.gone, turn.emptied = left or names, gone or fields, emptied or names
  return turn
end
