-- The slots of groups: those of members in flight, and those that members keep while they wait. See lib/groups.lua.
more_of_groups[#more_of_groups + 1] = function(it)
  local UNCOUNTED, ALONE, ORDERED = 1, 2, 61 -- =
  local MAX_WRITES = 8 -- of the field that the slots of a batch share, until each gets a field of its own
  local states, slots, in_parts = it.states, it.slots, it.in_parts

  local byte = string.byte -- called for every member

  local function id_of(item) return string.match(item, '^q1 (%S+)') end
  it.id_of = id_of

  -- Let the records of groups count slots that they did not, `most` at most, of {token, value, …} as they stand in `slots`.
  -- Returns how many they were.
  function it.count_slots(flat, most)
    local names, numbers, all = packed_slots.unmark(slots, flat, most)
    it.read_many(names)
    for _, name in ipairs(names) do it.record(name).busy = it.record(name).busy + numbers[name] end
    it.write_records(names)
    return all
  end

  -- Whether calls are counting what is in flight, see count_page. They may not meet a slot that goes to another field: what
  -- moves it counts it.
  local counting
  local function is_counting()
    if counting == nil then counting = string.find(redis.call('HGET', states, '@looking') or '', '^c') ~= nil end
    return counting
  end

  -- Give each slot of a batch a field of its own.
  function it.loosen(lease_id)
    local stored = redis.call('HGET', slots, lease_id)
    if not stored then return end
    if packed_slots.may_be_uncounted(stored) and is_counting() then it.count_slots({ lease_id, stored }, #stored) end
    packed_slots.loosen(slots, lease_id)
  end

  -- A message moves to another lease, and its slot with it.
  function it.move_slot(old_id, new_id, index)
    it.loosen(old_id)
    local token = old_id .. ':' .. index
    local name = redis.call('HGET', slots, token)
    if not name then return end
    if byte(name) == UNCOUNTED and is_counting() then
      it.count_slots({ token, name }, 1)
      name = it.name_of(name)
    end
    redis.call('HSET', slots, new_id .. ':' .. index, name)
    redis.call('HDEL', slots, token)
  end

  -- A slot of the group is taken, for `token`. `alone`: not one of its parent.
  function it.occupy(token, name, alone)
    local parent = it.parent_of(name)
    if redis.call('HSET', slots, token, alone and parent and '\2' .. name or name) == 0 then return end
    it.record(name).busy = it.record(name).busy + 1
    if parent and not alone then it.record(parent).busy = it.record(parent).busy + 1 end
    it.refresh(name)
  end

  -- Free a slot; false if nothing had it.
  function it.vacate(token)
    local lease_id = string.match(token, '^([^:]+):')
    if lease_id then it.loosen(lease_id) end
    local name = redis.call('HGET', slots, token)
    if not name then return false end
    redis.call('HDEL', slots, token)
    if byte(name) == UNCOUNTED then return true end
    local parent = byte(name) ~= ALONE and it.parent_of(name)
    name = it.name_of(name)
    if not lease_id and byte(name) == ORDERED then it.record(name).wait_ms = 0 end -- see keep_ordered_slot
    it.record(name).busy = math.max(0, it.record(name).busy - 1)
    if parent then it.record(parent).busy = math.max(0, it.record(parent).busy - 1) end
    it.refresh(name)
    return true
  end

  -- Members of groups have ended, `freed` of each of `names`: each group is read and written once.
  local function release(names, freed)
    names = it.lower_busy(names, freed)
    it.read_many(names)
    for _, name in ipairs(names) do
      local one = it.record(name)
      one.busy = math.max(0, one.busy - freed[name])
      if one.parent then
        local above = it.record(one.parent)
        above.busy = math.max(0, above.busy - freed[name])
      end
    end
    for _, name in ipairs(names) do
      local one = it.record(name)
      if one.number or one.parent then it.refresh(name) else it.write(name) end
    end
  end

  -- Free the slots of a batch that share a field, all or those of some messages. False, with nothing changed, if they do not
  -- share one, or if it would be written for too few.
  function it.vacate_batch(lease_id, indices)
    local stored = redis.call('HGET', slots, lease_id)
    if stored and not indices and packed_slots.are_uncounted(stored) then
      redis.call('HDEL', slots, lease_id)
      return true
    end
    local found, names, freed, left = stored and packed_slots.unpacked(stored), {}, {}, 0
    if not found or indices and #indices * MAX_WRITES < #found then return false end
    local function free(index)
      local name = found[index]
      if not name then return end
      found[index] = false
      if byte(name) == UNCOUNTED then return end
      if not freed[name] then names[#names + 1] = name end
      freed[name] = (freed[name] or 0) + 1
    end
    if indices then
      for _, index in ipairs(indices) do
        if string.find(index, '^[1-9]%d*$') then free(tonumber(index)) end
      end
      for i = 1, #found do left = found[i] and left + 1 or left end
    else
      for i = 1, #found do free(i) end
    end
    if left > 0 then redis.call('HSET', slots, lease_id, cmsgpack.pack(found)) else redis.call('HDEL', slots, lease_id) end
    if #names > 0 then release(names, freed) end
    return true
  end

  -- Free the slots of many messages of a lease.
  function it.vacate_all(lease_id, indices)
    if #indices == 0 or redis.call('EXISTS', slots) == 0 or it.vacate_batch(lease_id, indices) then return end
    it.loosen(lease_id)
    local AT_ONCE, names, freed, seen = 1000, {}, {}, {}
    for first = 1, #indices, AT_ONCE do
      local tokens, gone = {}, {}
      for i = first, math.min(first + AT_ONCE - 1, #indices) do tokens[#tokens + 1] = lease_id .. ':' .. indices[i] end
      for i, name in ipairs(redis.call('HMGET', slots, unpack(tokens))) do
        if name and not seen[tokens[i]] then
          seen[tokens[i]] = true -- an index may be named twice
          gone[#gone + 1] = tokens[i]
          if byte(name) ~= UNCOUNTED then
            if not freed[name] then names[#names + 1] = name end
            freed[name] = (freed[name] or 0) + 1
          end
        end
      end
      in_parts('HDEL', slots, gone)
    end
    release(names, freed)
  end

  -- Free the slots of the entries of a lease, as `read_lease` returns them.
  function it.vacate_entries(lease_id, entries)
    local indices = {}
    for i, entry in ipairs(entries) do indices[i] = entry[3] end
    it.vacate_all(lease_id, indices)
  end

  -- Items of a new lease, which did not wait in their groups, take a slot each, and a turn.
  function it.occupy_all(lease_id, items, now)
    for i, item in ipairs(items) do
      local name = group_of(item)
      if name then
        it.charge(name, now)
        it.occupy(lease_id .. ':' .. (#items == 1 and '0' or i), name)
        it.vacate(':' .. id_of(item))
      end
    end
  end

  -- How many members of each group are in flight and not counted, a page of about `most` slots a call; and the next cursor.
  function it.running_uncounted(cursor, most)
    local running = {}
    local next_cursor = packed_slots.each(slots, cursor, most, function(slot)
      if byte(slot) ~= UNCOUNTED then return end
      local name = it.name_of(slot)
      running[name] = (running[name] or 0) + 1
    end)
    return running, next_cursor
  end

  function it.name_of(slot) return string.find(slot, '^[\1\2]') and string.sub(slot, 2) or slot end

  -- An ordered group waits for a message that comes back at a time. Nothing of it runs until then: `wait_ms` tells people.
  function it.keep_ordered_slot(item, due_ms)
    local name = group_of(item)
    if not name or byte(name) ~= ORDERED then return end
    it.record(name).wait_ms = due_ms < MAX_MS and due_ms or 0
    it.occupy(':' .. id_of(item), name, true)
  end

  -- A waiting member keeps its slot: what comes after it must not run beside it.
  function it.keep_slot(item)
    local name = group_of(item)
    if name then it.occupy(':' .. id_of(item), name) end
  end

  -- A waiting message has ended, and a slot that it kept is free.
  function it.free_slot(item)
    if group_of(item) then it.vacate(':' .. id_of(item)) end
  end
end
