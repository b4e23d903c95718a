-- All groups, a page at a time. See lib/groups.lua.

more_of_groups[#more_of_groups + 1] = function(it)
  local states, turns, children, later, child, take_turn = it.states, it.turns, it.children, it.later, it.line_of, it.take_turn
  local SEATS_FROM, SEATS = 4503599627370496, 2147483648 -- 2^52, 2^31

  local function each(cursor, count, visit)
    local page = redis.call('HSCAN', states, cursor, 'COUNT', count)
    for i = 1, #page[2], 2 do
      if string.sub(page[2][i], 1, 1) == ':' then visit(string.sub(page[2][i], 2)) end
    end
    return page[1]
  end

  -- Limits have changed: groups that wait may run, and others no more. Returns the next cursor, and how many may run now.
  function it.look_again(cursor, now)
    local names = {}
    local next_cursor = each(cursor, 500, function(name) names[#names + 1] = name end)
    local some_wait = redis.call('ZCARD', later) > 0
    it.read_many(names)
    it.begin()
    for _, name in ipairs(names) do
      if some_wait and redis.call('ZREM', later, name) == 1 then it.waits(name, now) end
      if string.sub(name, -1) == '/' then
        take_turn(name, it.is_open(name) and it.first_child(name))
        it.write(name)
      else
        it.refresh(name)
      end
    end
    it.finish()
    if next_cursor == '0' then redis.call('HDEL', states, '@looking') else redis.call('HSET', states, '@looking', '1') end
    return next_cursor, it.opened
  end

  -- Compare a page of groups with what was counted in flight, `busy`; `tell` gets kind, group and words of what is wrong.
  function it.recount(cursor, busy, repair, tell)
    local next_cursor = each(cursor, 500, function(name)
      local one, right = it.record(name), busy[name] or 0
      if one.busy ~= right then
        tell('busy', name, 'counts ' .. text(one.busy) .. ' in flight, of ' .. text(right))
        if repair then one.busy = right end
      end
      local is_parent = string.sub(name, -1) == '/'
      local parent, stands = it.parent_of(name), true
      if not is_parent and one.number and one.first <= one.last and it.is_open(name) and not redis.call('ZSCORE', later, name) then
        if parent then
          stands = one.turn > 0 and redis.call('ZSCORE', children, child(parent, one.turn, name))
        else
          stands = redis.call('ZSCORE', turns, name)
        end
      elseif is_parent and it.is_open(name) and it.first_child(name) and not redis.call('ZSCORE', later, name) then
        stands = redis.call('ZSCORE', turns, name)
      end
      if not stands then tell('turn', name, 'may run and has no turn') end
      if not repair then return end
      if is_parent then
        take_turn(name, it.is_open(name) and it.first_child(name))
        it.write(name)
      else
        if not stands then one.turn = 0 end
        it.refresh(name)
      end
    end)
    return next_cursor, it.opened
  end

  -- Whether a seat is one of the group's waiting members.
  function it.is_seated(name, score)
    local one = it.record(name)
    if not one.number or math.floor((score - SEATS_FROM) / SEATS) ~= one.number then return false end
    return (score - SEATS_FROM - one.number * SEATS - one.first) % SEATS <= one.last - one.first
  end

  -- Until when a group or parent waits, nil if it does not: it stands in `later` from the next receive on.
  local function later_than(name, now)
    return redis.call('ZSCORE', later, name) or it.waits(name, now)
  end

  -- What `it.page` says of a group.
  local function add_state(name, now, found)
    local one, most = it.record(name), it.limit(name).concurrency
    local asked, waiting, parent, held = one.wait_ms > now, it.waiting(name), it.parent_of(name), nil
    -- A parent has no messages of its own: those of its groups wait.
    local may_wait = waiting > 0 or string.sub(name, -1) == '/'
    local until_ms = asked and one.wait_ms or may_wait and later_than(name, now)
    if parent and not until_ms and one.busy < most then
      until_ms = later_than(parent, now)
      held = until_ms or not it.is_open(parent)
    end
    local waits = until_ms and tonumber(until_ms) > now
    for _, word in ipairs({
      name, text(waiting), text(one.busy), most < math.huge and text(most) or '',
      waits and text(tonumber(until_ms)) or '', held and '1' or '', asked and '1' or '',
    }) do
      found[#found + 1] = word
    end
  end

  -- A page of groups, seven values each: name, waiting, in flight, concurrency, until when it waits, 1 if it waits for its
  -- parent, and 1 if a handler let it wait. The first page has also what is in flight and not counted, each group with a \1
  -- before its name.
  function it.page(cursor, now)
    local found = {}
    if cursor == '0' then
      for name, running in pairs(it.running_uncounted()) do
        for _, word in ipairs({ it.uncounted(name), '0', text(running), '', '', '', '' }) do found[#found + 1] = word end
      end
    end
    local next_cursor = each(cursor, 500, function(name) add_state(name, now, found) end)
    return next_cursor, found
  end

  -- The same of some groups.
  function it.states_of(names, now)
    local found = {}
    for _, name in ipairs(names) do add_state(name, now, found) end
    return found
  end
end
