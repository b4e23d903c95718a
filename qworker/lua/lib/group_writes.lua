-- Writes of many values, and of the records of groups. See lib/groups.lua.
more_of_groups[#more_of_groups + 1] = function(it)
  local states, later, records, pack = it.states, it.later, it.records, it.stored.pack
  local AT_ONCE = 1000 -- values of one command
  -- Written out: the rights of a user are read from this text.
  local COMMANDS = {
    ZADD = function(key, ...) return redis.call('ZADD', key, ...) end,
    ZREM = function(key, ...) return redis.call('ZREM', key, ...) end,
    HSET = function(key, ...) return redis.call('HSET', key, ...) end,
    HDEL = function(key, ...) return redis.call('HDEL', key, ...) end,
  }
  -- One of these with any number of values; returns the sum of its replies.
  function it.in_parts(command, key, values, option)
    local sum, call = 0, COMMANDS[command]
    for first = 1, #values, AT_ONCE do
      local last = math.min(first + AT_ONCE - 1, #values)
      sum = sum + (option and call(key, option, unpack(values, first, last)) or call(key, unpack(values, first, last)))
    end
    return sum
  end

  -- Write records. A group without members, slots or a wait is forgotten.
  function it.write_records(names)
    local set, gone, ends = {}, {}, {}
    for i = 1, #names do
      local name = names[i]
      local one = records[name]
      one.dirty = false
      local empty = not one.number and one.busy == 0 and one.turn == 0
      if empty and one.rate_ms == 0 and one.wait_ms == 0 then
        if one.known then gone[#gone + 1] = ':' .. name end
        one.known = false
      else
        if empty then
          -- Only its rate or its wait is left: it is forgotten after that.
          ends[#ends + 1], ends[#ends + 2] = math.ceil(math.max(one.rate_ms, one.wait_ms)), name
        end
        set[#set + 1], set[#set + 2] = ':' .. name,
          pack(one.number or -1, one.first, one.last, one.busy, one.turn, one.tag, one.rate_ms, one.wait_ms)
        one.known = true
      end
    end
    if it.next_start then
      set[#set + 1], set[#set + 2] = '@start', it.next_start
      it.next_start = nil
    end
    it.in_parts('ZADD', later, ends)
    it.in_parts('HSET', states, set)
    it.in_parts('HDEL', states, gone)
  end

  -- Members of groups have ended, `freed` of each of `names`. Groups that need no more than their records are written at once: those
  -- without a parent and without waiting members. Returns the others. (With members, a group that no limit holds any more may
  -- have been full: a change of limits looks at it once, and here.)
  function it.lower_busy(names, freed)
    local fields, asked, rest, set, gone = {}, {}, {}, {}, {}
    for i = 1, #names do
      local name = names[i]
      if records[name] or string.find(name, '/', 1, true) then
        rest[#rest + 1] = name
      else
        fields[#fields + 1], asked[#asked + 1] = ':' .. name, name
      end
    end
    local function lower(field, name, found)
      local number, first, last, busy, turn, tag, rate_ms, wait_ms = it.stored.unpack(found)
      local alone = number and number < 0 -- nothing waits
      busy = alone and (busy > freed[name] and busy - freed[name] or 0)
      local empty = alone and busy == 0 and turn == 0
      if not alone or empty and (rate_ms ~= 0 or wait_ms ~= 0) then
        rest[#rest + 1] = name
      elseif empty then
        gone[#gone + 1] = field
      else
        set[#set + 1], set[#set + 2] = field, pack(number, first, last, busy, turn, tag, rate_ms, wait_ms)
      end
    end
    for from = 1, #fields, AT_ONCE do
      local to = math.min(from + AT_ONCE - 1, #fields)
      local found = redis.call('HMGET', states, unpack(fields, from, to))
      for i = from, to do lower(fields[i], asked[i], found[i - from + 1]) end
    end
    it.in_parts('HSET', states, set)
    it.in_parts('HDEL', states, gone)
    return rest
  end
end
