-- All groups, a page at a time. See lib/groups.lua.

more_of_groups[#more_of_groups + 1] = function(it)
  local states, turns, children, later, child = it.states, it.turns, it.children, it.later, it.line_of
  local SEATS_FROM, SEATS = 4503599627370496, 2147483648 -- 2^52, 2^31
  -- A call: fields of `groups`, slots that are counted, and groups that look at limits.
  local FIELDS, SLOTS, LOOKS = 150, 500, 250

  -- Visit a page of groups, whose records come with it. Returns the next cursor.
  local function each(cursor, visit)
    local page = redis.call('HSCAN', states, cursor, 'COUNT', FIELDS)
    for i = 1, #page[2], 2 do
      if string.byte(page[2][i]) == 58 then -- a colon
        local name = string.sub(page[2][i], 2)
        if not it.records[name] then it.read(name, page[2][i + 1]) end
        visit(name)
      end
    end
    return page[1]
  end

  -- Groups with slots, a page a call.
  local function with_slots(cursor)
    local names, seen = {}, {}
    local next_cursor = packed_slots.each(it.slots, cursor, LOOKS, function(slot)
      local name = it.name_of(slot)
      if not seen[name] then names[#names + 1], seen[name] = name, true end
    end)
    return names, next_cursor
  end

  -- Groups and parents that wait for a time, a page a call, which no longer do. Earlier rules of a user do not allow to scan
  -- `later`: then all groups are looked at.
  local function wait_for_time(cursor, now)
    local names, due, next_cursor = {}, {}, nil
    if redis.acl_check_cmd('ZSCAN', later, '0') then
      local page = redis.call('ZSCAN', later, cursor, 'COUNT', LOOKS)
      for i = 1, #page[2], 2 do names[#names + 1] = page[2][i] end
      next_cursor = page[1]
      it.read_many(names)
    else
      next_cursor = each(cursor, function(name) names[#names + 1] = name end)
    end
    for _, name in ipairs(names) do
      if redis.call('ZREM', later, name) == 1 then
        it.waits(name, now)
        due[#due + 1] = name
      end
    end
    return due, next_cursor
  end

  -- A handler let it wait, which ends now. Returns whether it did. See keep_ordered_slot for the other reason of `wait_ms`.
  function it.end_wait(name, now)
    local one = it.record(name)
    if one.wait_ms <= now or one.busy > 0 and string.byte(name) == 61 then return false end -- =
    one.wait_ms = 0
    redis.call('ZREM', later, name)
    it.begin()
    it.update_turn(name)
    it.finish()
    return true
  end

  -- Limits have changed: groups that were full or had to wait may run, and those that are full leave the line. Others that may
  -- run no more do so at their turn. One without messages may keep its parent full. `cursor`: of slots, then of `later` with an
  -- l before it. Returns the next cursor, and how many may run now.
  function it.look_again(cursor, now)
    local names, next_cursor, waited = nil, nil, string.sub(cursor, 1, 1) == 'l'
    it.begin()
    if waited then
      names, next_cursor = wait_for_time(string.sub(cursor, 2), now)
      next_cursor = next_cursor == '0' and '0' or 'l' .. next_cursor
    else
      names, next_cursor = with_slots(cursor)
      if next_cursor == '0' and redis.call('ZCARD', later) > 0 then next_cursor = 'l0' end
    end
    it.read_many(names)
    for _, name in ipairs(names) do
      if waited or string.sub(name, -1) == '/' or it.record(name).number or it.parent_of(name) then it.update_turn(name) end
    end
    it.finish()
    local counts = string.byte(it.tags().looking or '') == 99 -- a c, of another caller
    if not counts and next_cursor == '0' then
      it.end_looking()
    elseif not counts then
      redis.call('HSET', states, '@looking', '1 ' .. text(now))
    end
    return next_cursor, it.opened
  end

  -- Compare a page of groups with what was counted in flight, `busy`; `tell` gets kind, group and words of what is wrong.
  function it.recount(cursor, busy, repair, tell)
    local next_cursor = each(cursor, function(name)
      local one, right = it.record(name), busy[name] or 0
      if one.busy ~= right then
        tell('busy', name, 'counts ' .. text(one.busy) .. ' in flight, of ' .. text(right))
        if repair then one.busy, one.wait_ms = right, string.byte(name) == 61 and 0 or one.wait_ms end -- see keep_ordered_slot
      end
      local is_parent = string.sub(name, -1) == '/'
      local last = not is_parent and one.number and it.last_taken(name)
      if not is_parent and one.number and last ~= one.last then
        tell('seat', name, last and 'has seats after its last message' or 'has seats for messages and none waits')
        if repair then it.leave_seats(name) end
      end
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
      if not stands and not is_parent then one.turn = 0 end
      it.update_turn(name)
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
  local some_later
  local function later_than(name, now)
    if some_later == nil then some_later = redis.call('ZCARD', later) > 0 end
    return some_later and redis.call('ZSCORE', later, name) or it.waits(name, now)
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
      asked = asked or until_ms and it.record(parent).wait_ms > now
    end
    local waits, delayed_first = until_ms and tonumber(until_ms) > now, one.busy > 0 and string.byte(name) == 61 -- =
    for _, word in ipairs({
      name, text(waiting), text(one.busy), most < math.huge and text(most) or '',
      waits and text(tonumber(until_ms)) or '', held and '1' or '', asked and (delayed_first and '2' or '1') or '',
    }) do
      found[#found + 1] = word
    end
  end

  -- A page of groups, seven values each: name, waiting, in flight and counted, concurrency, until when it waits, 1 if it waits
  -- for its parent; and 1 if a handler let it wait, 2 if its delayed first message does.
  function it.page(cursor, now)
    local found = {}
    local next_cursor = each(cursor, function(name) add_state(name, now, found) end)
    return next_cursor, found
  end

  -- The same of some groups.
  function it.states_of(names, now)
    local found = {}
    for _, name in ipairs(names) do add_state(name, now, found) end
    return found
  end

  -- A page of what is in flight and not counted: name and number of each group, which other pages may have as well.
  function it.uncounted_page(cursor)
    local found, running, next_cursor = {}, it.running_uncounted(cursor, SLOTS)
    for name, number in pairs(running) do
      found[#found + 1], found[#found + 2] = name, text(number)
    end
    return next_cursor, found
  end
end
