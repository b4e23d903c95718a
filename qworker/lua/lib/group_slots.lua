-- The slots of groups: those of members in flight, and those that members keep while they wait. See lib/groups.lua.
more_of_groups[#more_of_groups + 1] = function(it)
  local UNCOUNTED, MARK, ORDERED = 1, '\1', 61 -- =
  local MOST_WRITES = 8 -- of the field that the slots of a batch share, until each gets a field of its own
  local slots, in_parts = it.slots, it.in_parts

  local byte = string.byte -- called for every member

  local function id_of(item) return string.match(item, '^q1 (%S+)') end

  -- A slot of the group is taken, for `token`.
  function it.occupy(token, name)
    if redis.call('HSET', slots, token, name) == 0 then return end
    local parent = it.parent_of(name)
    it.record(name).busy = it.record(name).busy + 1
    if parent then it.record(parent).busy = it.record(parent).busy + 1 end
    it.refresh(name)
  end

  -- Free a slot; false if nothing had it.
  function it.vacate(token)
    local lease_id = string.match(token, '^([^:]+):')
    if lease_id then packed_slots.loosen(slots, lease_id) end
    local name = redis.call('HGET', slots, token)
    if not name then return false end
    redis.call('HDEL', slots, token)
    if byte(name) == UNCOUNTED then return true end
    if not lease_id and byte(name) == ORDERED then it.record(name).wait_ms = 0 end -- see keep_ordered_slot
    local parent = it.parent_of(name)
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
    if not found or indices and #indices * MOST_WRITES < #found then return false end
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
    packed_slots.loosen(slots, lease_id)
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

  -- Items of a new lease take a slot each.
  function it.occupy_all(lease_id, items)
    for i, item in ipairs(items) do
      local name = group_of(item)
      if name then
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

  -- The queue gets its first limit: what is in flight counts from now on.
  function it.count_all()
    local found, counted = redis.call('HGETALL', slots), {}
    local function count(slot)
      if not slot or byte(slot) ~= UNCOUNTED then return slot end
      local name = it.name_of(slot)
      counted[name] = (counted[name] or 0) + 1
      return name
    end
    local written, names = {}, {}
    for i = 1, #found, 2 do
      local token, value = found[i], found[i + 1]
      local batch = not string.find(token, ':', 1, true) and packed_slots.unpacked(value)
      if batch then
        for index, slot in ipairs(batch) do batch[index] = count(slot) end
        written[#written + 1], written[#written + 2] = token, cmsgpack.pack(batch)
      elseif byte(value) == UNCOUNTED then
        written[#written + 1], written[#written + 2] = token, count(value)
      end
    end
    if next(counted) == nil then return end
    in_parts('HSET', slots, written)
    for name in pairs(counted) do names[#names + 1] = name end
    it.read_many(names)
    for _, name in ipairs(names) do it.record(name).busy = it.record(name).busy + counted[name] end
    it.write_records(names)
  end

  function it.uncounted(name) return MARK .. name end

  function it.name_of(slot) return byte(slot) == UNCOUNTED and string.sub(slot, 2) or slot end

  -- An ordered group waits for a message that comes back at a time. Nothing of it runs until then: `wait_ms` tells people.
  function it.keep_ordered_slot(item, due_ms)
    local name = group_of(item)
    if not name or byte(name) ~= ORDERED then return end
    it.record(name).wait_ms = due_ms < MAX_MS and due_ms or 0
    it.keep_slot(item)
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
