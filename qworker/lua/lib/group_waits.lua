-- Groups that wait for a time, and those whose turn it is. See lib/groups.lua.

more_of_groups[#more_of_groups + 1] = function(it)
  local SLASH = 47
  local MAX_BACK = 1000 -- groups that a call looks at when the clock was set back
  local STOPPED_MS = 60000
  local turns, later = it.turns, it.later

  local put = {}
  function it.put_later(name, at_ms)
    put[name] = true
    redis.call('ZADD', later, text(at_ms), name)
  end

  -- The clock was set back by `back_ms`: those that wait the longest, whose times are nearer by as much. Of more than
  -- MAX_BACK the rest follows in later calls, and some of them wait less than they were told to.
  local function set_back(now, back_ms)
    local far = redis.call('ZRANGE', later, 0, MAX_BACK - 1, 'REV')
    it.read_many(far)
    for _, name in ipairs(far) do
      local one = it.record(name)
      if one.wait_ms > now then one.wait_ms = math.max(now, one.wait_ms - back_ms) end
    end
    return far
  end

  -- A caller of limits stopped halfway: a minute after its last call deliveries need not be counted for it. If it comes back,
  -- it counts from the beginning.
  local function forget_stopped(looking, now)
    local at_ms = tonumber(string.match(looking, ' (%d+)$'))
    if not at_ms or math.abs(now - at_ms) > STOPPED_MS then it.end_looking() end
  end

  -- Groups whose time has come, at most 100 a call. After a clock was set back, also those that wait the longest: their
  -- waits and rates are computed anew.
  function it.come_back(now)
    local due = redis.call('ZRANGE', later, '-inf', text(now), 'BYSCORE', 'LIMIT', 0, 100)
    local seen = it.tags()
    if seen.looking then forget_stopped(seen.looking, now) end
    if now + 1000 < seen.at_ms then
      local far = set_back(now, seen.at_ms - now)
      for _, name in ipairs(far) do due[#due + 1] = name end
      if #far < MAX_BACK then seen.at_ms = now end
    else
      seen.at_ms = now
    end
    if #due == 0 then return end
    redis.call('ZREM', later, unpack(due))
    it.read_many(due)
    it.begin()
    for _, name in ipairs(due) do
      local until_ms = it.waits(name, now)
      if until_ms then
        it.put_later(name, until_ms)
        it.write(name)
      else
        it.update_turn(name)
      end
    end
    it.finish()
  end

  function it.next_later()
    return tonumber(redis.call('ZRANGE', later, 0, 0, 'WITHSCORES')[2])
  end

  local FEW = 16

  -- How many members of a group may run now, by its own limits; at least one.
  local function may_start(name, now)
    local one, limit = it.record(name), it.limit(name)
    local most = math.min(one.last - one.first + 1, limit.concurrency - one.busy)
    if limit.every_ms then most = math.min(most, math.floor((now - one.rate_ms) / limit.every_ms + limit.burst)) end
    return math.max(1, most)
  end

  -- How many members may run now: at least one of each group that stands in line, and where few do, all of them; of the
  -- groups of a parent the first few count.
  function it.running(now)
    local standing = redis.call('ZCARD', turns)
    if standing == 0 or standing > FEW then return standing end
    local number, names = 0, redis.call('ZRANGE', turns, 0, -1)
    it.read_many(names)
    for _, name in ipairs(names) do
      if string.sub(name, -1) == '/' then
        local below, all = it.first_children(name, 0, FEW + 1), 0
        it.read_many(below)
        for _, child in ipairs(below) do all = all + may_start(child, now) end
        number = number + math.max(1, math.min(all, it.limit(name).concurrency - it.record(name).busy))
      else
        number = number + may_start(name, now)
      end
    end
    return number
  end
  -- Those that stand in line, `count` at most, after the first `from`: {name, tag, …}.
  function it.window(from, count) return redis.call('ZRANGE', turns, from, from + count - 1, 'WITHSCORES') end

  -- Whether a group or parent that this call has not put aside may run.
  function it.may_run(name)
    local one, is_parent = it.record(name), string.byte(name, -1) == SLASH
    if not is_parent and not one.number or put[name] or not it.is_open(name) then return false end
    if is_parent then return it.first_child(name) ~= nil end
    return one.first <= one.last
  end

  -- Those that have `left` the line are often the first that stood there when `window` was read, and nothing has been written
  -- to it since: then these are removed as a range. Returns whether they are removed. Without a window they are the first.
  function it.leave_first(left, window)
    for i = 1, window and #left or 0 do
      if left[i] ~= window[2 * i - 1] then return false end
    end
    if #left > 0 then redis.call('ZREMRANGEBYRANK', turns, 0, #left - 1) end
    return true
  end

  -- Write who stands in line, and where: {virtual time, name, …}, and who has left it. One that ran empty may have got
  -- members since, from a list of ready. `removed`: those that have left are out of the store already.
  function it.set_turns(stand, left, removed)
    local gone = {}
    for _, name in ipairs(left) do
      if (it.record(name).number or string.byte(name, -1) == SLASH) and it.may_run(name) then
        stand[#stand + 1], stand[#stand + 2] = it.record(name).tag, name
      else
        gone[#gone + 1] = name
      end
    end
    it.in_parts('ZADD', turns, stand)
    if not removed then it.in_parts('ZREM', turns, gone) end
  end
end
