-- A receive from a queue with groups: who is next, message by message. See lib/groups.lua.

do
local MAX_READ = 8 -- members that are read at once
local MAX_TAKEN = 500 -- messages: a call with twice as many keeps others waiting for 20 ms
local SHORT = 4096 -- bytes of a message that is searched whole: to cut off its header takes longer
local SLASH, ORDERED = 47, 61 -- /=
local byte = string.byte

-- Fill the batch. `bounds`: count, steps, bytes. `waiting`: messages without a group; `read_plain(number)` reads so many of
-- them into the batch. Returns what `write` needs once the lease is written.
function turns.take(batch, bounds, waiting, read_plain, now, amounts)
  local it, line, read = groups(), new_line(), {}
  bounds.count = math.min(bounds.count, MAX_TAKEN)
  it.come_back(now)
  local each = waiting == 0 and turns.take_each(it, batch, bounds, now)
  if each then return each end
  it.begin()
  local families = turns.families(it)
  local taken = { names = {}, members = 0, gone = {}, left = {}, emptied = {}, families = families, line = line }
  local gone, left, emptied = taken.gone, taken.left, taken.emptied
  local tags, records, window_end = it.tags(), it.records, 0
  local unlimited = it.are_unlimited()
  local tombstones, spare = batch.tombstones, 0 -- how many stand in line beyond those that the batch needs

  -- Let the next `most` of all that may run stand in line: later ones have larger tags.
  local function widen(most)
    local window, names = it.window(window_end, most), {}
    taken.window = taken.window or window
    for i = 1, #window, 2 do names[#names + 1] = window[i] end
    line.append(window)
    spare = spare + #names
    it.read_many(names)
    window_end = #names == most and window_end + most or nil
  end
  widen(bounds.count)
  spare = 0
  if waiting > 0 then line.add('', math.max(tags.plain, tags.queue)) else tags.plain = 0 end

  local items, heads, names, plain, number, steps, full = {}, {}, taken.names, 0, 0, 0, false

  -- The next waiting member of a group, and its seat if that is not the next one; nil without one. From the second turn on, a
  -- few are read at once.
  local function next_member(name, one)
    local found = read[name]
    if not found then
      read[name] = 1
      return it.next_member(one)
    end
    if found == 1 or found.at > #found then
      local most = found == 1 and 2 or math.min(2 * found.most, MAX_READ)
      found = it.members(one, most)
      found.most, found.at = most, 1
      read[name] = found
    end
    found.at = found.at + 2
    return found[found.at - 2], found[found.at - 1]
  end

  -- Take or end the next member of a group. True if one was taken, nil if it has none, and as the second value true if one has
  -- ended. Without a `limit` nothing limits the
  -- group, now or while the member is in flight: it takes a turn and is not counted.
  local function take_member(name, one, limit)
    local item, seat = next_member(name, one)
    if not item then
      it.drop_number(one)
      return nil
    end
    local bytes, head = batch.bytes + #item, item
    if bytes > bounds.bytes and bytes > #item then
      full = true
      return false
    end
    if seat then it.pass(one, seat) else one.first = one.first + 1 end
    if one.first > one.last then it.drop_number(one) end
    batch.bytes = bytes
    gone[#gone + 1] = item
    local searched = #item < SHORT and item or header(item)
    if book.all or tombstones or find(searched, ' x=', 1, true) or find(searched, ' u=', 1, true) then
      head = header(item)
      local ended = over(head, now, tombstones)
      if ended and parse(item) then
        record(ended, item)
        end_of(item, ended)
        amounts[ended] = (amounts[ended] or 0) + 1
        amounts.stored = (amounts.stored or 0) - 1
        it.skip(one)
        return false, true
      end
      start_unique(head)
    end
    number, taken.members = number + 1, taken.members + 1
    items[number], heads[number] = item, head
    if limit then
      it.spend(name, one, limit, now)
      names[number] = name
    else
      local tag, from = one.tag, tags.queue
      one.tag = (tag > from and tag or from) + 1
      names[number] = '\1' .. name
      if not one.number and one.busy == 0 then emptied[#emptied + 1] = name end
    end
    return true
  end

  -- The time in ms until when a group or parent must wait, nil if it may run now.
  local function waits(name, one, limit)
    return (limit.every_ms or one.wait_ms > 0 or one.rate_ms > 0) and it.waits(name, now) or nil
  end

  -- One turn of a parent; returns whether it stays in line.
  local function turn_of_parent(name, one, limit)
    local group = families.first(name)
    if group then
      local own, cap = it.record(group), it.limit(group)
      it.write(group, own)
      local is_open = own.busy < cap.concurrency
      local until_ms = is_open and waits(group, own, cap)
      if until_ms then
        it.put_later(group, until_ms)
      elseif is_open then
        local given, has_ended = take_member(group, own, cap)
        if given then it.spend(name, one, limit, now) elseif has_ended then it.skip(one) end
      end
      if full then return true end
      families.move(name, group, not until_ms and own.number and own.busy < cap.concurrency)
      if families.first(name) then return one.busy < limit.concurrency end
    end
    one.turn = 0
    return false
  end

  -- One turn of a group or parent; returns whether it stays in line.
  local function turn(name, one)
    it.write(name, one)
    if unlimited and not one.parent and one.wait_ms == 0 and one.rate_ms == 0 and byte(name) ~= ORDERED and byte(name, -1) ~= SLASH then
      take_member(name, one, nil)
      return one.number
    end
    local limit = it.limit(name)
    if one.busy >= limit.concurrency then return false end
    local until_ms = waits(name, one, limit)
    if until_ms then
      it.put_later(name, until_ms)
      return false
    end
    if byte(name, -1) == SLASH then return turn_of_parent(name, one, limit) end
    take_member(name, one, limit)
    return one.number and one.busy < limit.concurrency
  end

  while number < bounds.count and steps < bounds.steps and batch.bytes < bounds.bytes and not full do
    local name, tag = line.take()
    if not name then break end
    steps = steps + 1
    if tag > tags.queue then tags.queue = tag end
    if name == '' then
      plain, number, waiting = plain + 1, number + 1, waiting - 1
      items[number], names[number] = false, false
      tags.plain = tag + 1
      if waiting > 0 then line.add('', tags.plain) end
    else
      local before, one = number, records[name]
      if turn(name, one) then
        line.add(name, one.tag > tag and one.tag or tag)
      else
        left[#left + 1] = name
      end
      if number == before and window_end then
        -- It gave nothing: another one is needed.
        if spare == 0 then widen(math.min(window_end, 64)) end
        spare = spare - 1
      end
    end
  end
  turns.mix(batch, taken, items, heads, plain, read_plain)
  return taken
end

-- Write what a receive has changed; the lease is written.
function turns.write(lease_id, batch, taken, now)
  local it = groups()
  if taken and taken.write then
    taken.write(lease_id)
  elseif taken then
    if taken.members > 0 then it.stored.hold(it.slots, lease_id, taken.names, '') end
    it.in_parts('ZREM', delayed, taken.gone)
    local left = it.leave_first(taken.left, taken.window)
    taken.families.write()
    if #taken.emptied > 0 then it.stored.note_recent(it.tags(), taken.emptied) end
    it.finish()
    it.set_turns(taken.line.returned(), taken.left, left)
    it.write_tags()
  end
  if #batch.items == 1 and not (taken and taken.members > 0) then it.occupy_all(lease_id, batch.items, now) end -- a suspect
end
end
