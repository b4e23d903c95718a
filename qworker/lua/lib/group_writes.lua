-- Writes of many values, and of the records of groups. See lib/groups.lua.
more_of_groups[#more_of_groups + 1] = function(it)
  local states, later = it.states, it.later
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

  local function packed(one)
    return '\152' .. cmsgpack.pack(one.number or -1, one.first, one.last, one.busy, one.turn, one.tag, one.rate_ms, one.wait_ms)
  end

  -- Write records. A group without members, slots or a wait is forgotten.
  function it.write_records(names)
    local set, gone, ends = {}, {}, {}
    for _, name in ipairs(names) do
      local one = it.record(name)
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
        set[#set + 1], set[#set + 2] = ':' .. name, packed(one)
        one.known = true
      end
    end
    it.in_parts('ZADD', later, ends)
    it.in_parts('HSET', states, set)
    it.in_parts('HDEL', states, gone)
  end
end
