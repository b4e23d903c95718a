-- A receive from a queue with groups: who is next, message by message. See lib/groups.lua.

-- A script has at most 200 local names, so these are fields of one.
local turns = {}
do
local MOST_READ = 8 -- members that are read at once

-- Fill the batch. `bounds`: count, steps, bytes. `waiting`: messages without a group; `read_plain(number)` reads so many of
-- them into the batch. Returns what `delivered` writes once the lease is written.
function turns.take(batch, bounds, waiting, read_plain, now, amounts)
  local it, line, read = groups(), new_line(), {}
  local taken = { names = {}, gone = {}, touched = {}, turns = {} }
  it.come_back(now)
  local tags, known, window_end = it.tags(), {}, 0
  local spare = 0 -- how many stand in line beyond those that the batch needs

  -- Let the next `most` of all that may run stand in line: later ones have larger tags.
  local function widen(most)
    local window, names = it.window(window_end, most), {}
    for i = 1, #window, 2 do
      local name = window[i]
      if not known[name] then
        known[name], names[#names + 1] = true, name
        line.add(tonumber(window[i + 1]), name)
        spare = spare + 1
      end
    end
    it.read_many(names)
    window_end = #window == 2 * most and window_end + most or nil
  end
  widen(bounds.count)
  spare = 0
  if waiting > 0 then line.add(math.max(tags.plain, tags.queue), '') else tags.plain = 0 end

  -- The next waiting member of a group, which stays where it is; nil without one.
  local function next_member(name, one)
    local found = read[name]
    if not found or found.at > #found then
      found = it.members(one, found and math.min(2 * found.asked, MOST_READ) or 1)
      found.asked, found.at = read[name] and math.min(2 * read[name].asked, MOST_READ) or 1, 1
      read[name] = found
    end
    return found[found.at], found[found.at + 1]
  end

  local sequence, plain, number, steps, full = {}, 0, 0, 0, false

  -- Take or end the next member of a group. True if one was taken, nil if it has none.
  local function take_member(name, one)
    local item, score = next_member(name, one)
    if not item then
      it.drop_number(one)
      return nil
    end
    if batch.bytes > 0 and batch.bytes + #item > bounds.bytes then
      full = true
      return false
    end
    read[name].at = read[name].at + 2
    it.pass(one, score)
    if one.first > one.last then it.drop_number(one) end
    batch.bytes = batch.bytes + #item
    taken.gone[#taken.gone + 1] = item
    local head = header(item)
    local ended = over(head, now, batch.tombstones ~= nil)
    if ended and parse(item) then
      record(ended, item)
      end_of(item, ended)
      amounts[ended] = (amounts[ended] or 0) + 1
      amounts.stored = (amounts.stored or 0) - 1
      return false
    end
    start_unique(head)
    it.spend(name, now)
    sequence[#sequence + 1] = { item, name }
    return true
  end

  local function may(one, name)
    return one.number and it.is_open(name)
  end

  -- One turn of a group or parent; returns whether it stays in line.
  local function turn(name)
    local is_parent = string.sub(name, -1) == '/'
    local one = it.record(name)
    taken.touched[name] = true
    if not it.is_open(name) then return false end
    local until_ms = it.waits(name, now)
    if until_ms then
      it.put_later(name, until_ms)
      return false
    end
    if not is_parent then
      if take_member(name, one) then number = number + 1 end
      return may(one, name)
    end
    local group = it.first_child(name)
    if not group then
      one.turn = 0
      return false
    end
    local own = it.record(group)
    taken.touched[group] = true
    until_ms = it.is_open(group) and it.waits(group, now)
    if until_ms then it.put_later(group, until_ms) end
    if it.is_open(group) and not until_ms and take_member(group, own) then
      it.spend(name, now)
      number = number + 1
    end
    if full then return true end
    it.queue_up(name, group, not until_ms and may(own, group))
    if it.first_child(name) then return it.is_open(name) end
    one.turn = 0
    return false
  end

  while number < bounds.count and steps < bounds.steps and batch.bytes < bounds.bytes and not full do
    local next_up = line.first()
    if not next_up then break end
    steps = steps + 1
    tags.queue = math.max(tags.queue, next_up.tag)
    if next_up.name == '' then
      sequence[#sequence + 1] = false
      plain, number, waiting = plain + 1, number + 1, waiting - 1
      next_up.tag = next_up.tag + 1
      tags.plain = next_up.tag
      if waiting > 0 then line.moved() else line.leave() end
    else
      local before, stays = number, turn(next_up.name)
      taken.turns[next_up.name] = stays and true or false
      if stays then
        next_up.tag = math.max(next_up.tag, it.record(next_up.name).tag)
        line.moved()
      else
        line.leave()
      end
      if number == before and window_end then
        -- It gave nothing: another one is needed.
        if spare == 0 then widen(math.min(window_end, 64)) end
        spare = spare - 1
      end
    end
  end

  if plain > 0 then read_plain(plain) end
  local items, heads, at = batch.items, batch.heads, 0
  batch.items, batch.heads, batch.number = {}, {}, 0
  local function add(item, head, name)
    batch.number = batch.number + 1
    batch.items[batch.number], batch.heads[batch.number], taken.names[batch.number] = item, head, name
  end
  for _, one in ipairs(sequence) do
    if one then
      add(one[1], header(one[1]), one[2])
    elseif items[at + 1] then
      at = at + 1
      add(items[at], heads[at])
    end
  end
  return taken
end

-- Write what a receive has changed; the lease is written.
function turns.write(lease_id, batch, taken)
  local it, slots, count = groups(), {}, #batch.items
  if taken then
    for i = 1, count do
      if taken.names[i] then
        slots[#slots + 1] = lease_id .. ':' .. (count == 1 and '0' or i)
        slots[#slots + 1] = taken.names[i]
      end
    end
    for first = 1, #slots, 1000 do
      it.hold({ unpack(slots, first, math.min(first + 999, #slots)) })
    end
    for first = 1, #taken.gone, 500 do
      redis.call('ZREM', delayed, unpack(taken.gone, first, math.min(first + 499, #taken.gone)))
    end
    -- One that ran empty may have got members since, from a list of ready.
    for name, stays in pairs(taken.turns) do it.set_turn(name, stays or it.may_run(name)) end
    for name in pairs(taken.touched) do it.write(name) end
    it.write_tags()
  end
  if #slots == 0 and count == 1 then it.occupy_all(lease_id, batch.items) end -- a suspect
end
end
