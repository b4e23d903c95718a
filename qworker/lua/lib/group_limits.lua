-- The limits of groups, and the times that they make groups wait. See lib/groups.lua.

more_of_groups[#more_of_groups + 1] = function(it)
  local MAX_LATER_MS = 50 -- that a message waits for others to start with it
  local FEW = 64 -- limits that are read at once, instead of asking for each group
  local limits, states, caps, limited, stored = it.limits, it.states, {}, nil, nil

  local function read_limit(words, into)
    if not words then return end
    into.concurrency = into.concurrency or tonumber(string.match(words, 'c=(%d+)'))
    if not into.every_ms then
      local count, period_ms = string.match(words, 'r=(%d+)/(%d+)')
      if count and tonumber(count) > 0 then
        into.every_ms = tonumber(period_ms) / tonumber(count)
        into.burst = math.max(1, tonumber(string.match(words, 'b=(%d+)')) or 1)
      end
    end
    if string.find(words, 's=', 1, true) then into.shared = true end
    into.weight = into.weight or tonumber(string.match(words, 'w=([%d.]+)'))
    into.members = into.members or tonumber(string.match(words, 'm=(%d+)'))
  end

  local NONE = { concurrency = math.huge, weight = 1 }
  local ORDERED = { concurrency = 1, weight = 1 }

  -- Limits of a name were written.
  function it.forget_limit(name)
    caps[name], limited, stored = nil, nil, nil
  end

  local function has_limits()
    if limited == nil then
      local number = redis.call('HLEN', limits)
      limited = number > 0
      if limited and number <= FEW then
        local flat = redis.call('HGETALL', limits)
        stored = {}
        for i = 1, #flat, 2 do stored[flat[i]] = flat[i + 1] end
      end
    end
    return limited
  end

  -- The words of some names, false for those without.
  local function words_of(...)
    if not stored then return redis.call('HMGET', limits, ...) end
    local found = {}
    for i = 1, select('#', ...) do found[i] = stored[select(i, ...)] or false end
    return found
  end

  -- Whether the only groups with a limit are the ordered ones, and all groups have looked at that.
  function it.are_unlimited() return not has_limits() and not it.tags().looking end

  -- The limits of a group or parent: its own go before those of its kind.
  function it.limit(name)
    local is_ordered = string.byte(name) == 61 -- =
    if not limited and not has_limits() then return is_ordered and ORDERED or NONE end
    local one = caps[name]
    if one then return one end
    one = {}
    caps[name] = one
    local bare, found = is_ordered and string.sub(name, 2) or name, nil
    if string.byte(name, -1) == 47 then -- a slash
      found = words_of(bare, '*/')
    else
      found = words_of(bare, (it.parent_of(name) or '') .. '*', '*')
    end
    for _, words in ipairs(found) do read_limit(words, one) end
    if is_ordered then one.concurrency = 1 end
    one.concurrency, one.weight = one.concurrency or math.huge, math.max(one.weight or 1, 0.001)
    return one
  end

  -- The time in ms until when a group or parent must wait, nil if it may run now.
  function it.waits(name, now)
    local one, limit = it.record(name), it.limit(name)
    if one.wait_ms > now then return one.wait_ms end
    one.wait_ms = 0
    if not limit.every_ms then
      one.rate_ms = 0
      return nil
    end
    -- No later than a full burst from now: a clock was set back, or the limit changed.
    one.rate_ms = math.min(one.rate_ms, now + limit.burst * limit.every_ms)
    local from_ms = one.rate_ms - (limit.burst - 1) * limit.every_ms
    if from_ms > now then
      -- Several at a time, of half of the burst: a call for each would cost more than what it starts.
      local some = math.min(math.floor(limit.burst / 2), math.floor(MAX_LATER_MS / limit.every_ms) + 1)
      return math.ceil(from_ms + math.max(0, some - 1) * limit.every_ms)
    end
    if one.rate_ms <= now then one.rate_ms = 0 end
    return nil
  end

  -- A group waits because a handler said so. When that was is noted: a clock that is set back shortens the wait.
  function it.wait_until(name, at_ms, now)
    local one, seen = it.record(name), it.tags()
    one.wait_ms = math.max(one.wait_ms, at_ms)
    it.write(name)
    if now > seen.at_ms then
      seen.at_ms = now
      redis.call('HSET', states, '@ms', text(now))
    end
  end

  -- A message of it is delivered now, and counted.
  function it.spend(name, one, limit, now)
    one.busy = one.busy + 1
    if limit.every_ms then one.rate_ms = math.max(one.rate_ms, now) + limit.every_ms end
    local from = it.tags().queue
    one.tag = (one.tag > from and one.tag or from) + 1 / limit.weight
    if limit.shared then redis.call('HINCRBY', states, '*' .. name, 1) end
  end

  -- The same, for it and its parent, of one whose slot is counted apart from that.
  function it.charge(name, now)
    local one, parent = it.record(name), it.parent_of(name)
    it.spend(name, one, it.limit(name), now)
    one.busy = one.busy - 1
    if parent then it.charge(parent, now) end
  end

  -- A message of it has ended instead, because it has expired or was cancelled. If that took no part of a turn, a flood of
  -- such messages would keep all others waiting.
  local PART = 1 / 16
  function it.skip(one) one.tag = math.max(one.tag, it.tags().queue) + PART end

  function it.is_open(name)
    local one = it.record(name)
    return one.busy < it.limit(name).concurrency
  end
end
