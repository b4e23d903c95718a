-- Writes of many values, and of the records of groups. See lib/groups.lua.
more_of_groups[#more_of_groups + 1] = function(it)
  local states, later, records = it.states, it.later, it.records
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

  -- The numbers of a call repeat, and packing one costs more than finding it.
  local packed = setmetatable({}, { __index = function(known, number)
    local bytes = cmsgpack.pack(number)
    if number == number then known[number] = bytes end
    return bytes
  end })

  local function pack(one)
    local waits = one.turn == 0 and one.rate_ms == 0 and one.wait_ms == 0
    return '\152' .. packed[one.number or -1] .. packed[one.first] .. packed[one.last] .. packed[one.busy]
      .. (waits and '\0' or packed[one.turn]) .. packed[one.tag]
      .. (waits and '\0\0' or packed[one.rate_ms] .. packed[one.wait_ms])
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
        set[#set + 1], set[#set + 2] = ':' .. name, pack(one)
        one.known = true
      end
    end
    it.in_parts('ZADD', later, ends)
    it.in_parts('HSET', states, set)
    it.in_parts('HDEL', states, gone)
  end
end
