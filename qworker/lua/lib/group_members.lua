-- Members of groups: where they wait. See lib/groups.lua.
more_of_groups[#more_of_groups + 1] = function(it)
  local SEATS_FROM, SEATS = 4503599627370496, 2147483648 -- 2^52, 2^31
  local states, turns = it.states, it.turns

  local function seat_at(name, one, number)
    one.number, one.first, one.last = number, 0, -1
    if not one.known and it.stored.is_recent(it.tags(), name) then one.tag = it.tags().queue + 1 end
  end

  -- Of a call, which would stop the server: how often it looks ahead, and how many counts it passes; the seats of what it
  -- has given may not be written yet, so it must not come round to them.
  local MAX_LOOKS, MAX_PASSED = 200, 1000000
  local looks, passed = 0, 0
  local function number_at(count)
    local tags = it.tags()
    local free = tags.free
    if looks >= MAX_LOOKS and count > (free or -1) then return nil end
    local number = it.stored.number_at(tags, count)
    if tags.free ~= free then looks = looks + 1 end
    return number
  end

  -- Groups that have waited since the last round have numbers in a row: steps grow to leave it behind.
  local TRIES, ONE_BY_ONE, LONGEST = 64, 17, 16384
  local function give_number(name, one)
    local step = 1
    for try = 1, TRIES do
      if passed + step > MAX_PASSED then return false end
      passed = passed + step
      local count = redis.call('HINCRBY', states, '@number', step)
      local number = number_at(count)
      if number then
        seat_at(name, one, number)
        return true
      end
      if count > (it.tags().free or count) then return false end -- it must not look, or has looked enough
      if try >= ONE_BY_ONE then step = math.min(4 * step, LONGEST) end
    end
    return false
  end

  -- Give numbers to groups that have none, together; one that is taken is left to `enter`.
  function it.give_numbers(names)
    local new = {}
    for _, name in ipairs(names) do
      if not it.record(name).number then new[#new + 1] = name end
    end
    if #new == 0 then return end
    table.sort(new) -- as they will stand in line: members that are received together have seats next to each other
    local before = redis.call('HINCRBY', states, '@number', #new) - #new
    passed = passed + #new
    for i = 1, #new do
      local number = number_at(before + i)
      if number then seat_at(new[i], it.record(new[i]), number) end
    end
  end

  -- The group has run empty.
  function it.drop_number(one) one.number, one.first, one.last = nil, 0, -1 end

  -- The last seat of a group that is taken; nil without one.
  function it.last_taken(name)
    local one = it.record(name)
    if not one.number or one.first > one.last then return nil end
    local from, low, high = SEATS_FROM + one.number * SEATS, one.first % SEATS, one.last % SEATS
    if redis.call('ZCOUNT', delayed, from + high, from + high) > 0 then return one.last end
    local function last_of(a, b)
      return redis.call('ZRANGE', delayed, from + b, from + a, 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
    end
    local score = last_of(low <= high and low or 0, high) or low > high and last_of(low, SEATS - 1)
    return score and one.first + (score - from - one.first) % SEATS or nil
  end

  -- Members have left their seats out of turn. The last seat of a group is always taken, so that its number is free only once it
  -- has run empty.
  function it.leave_seats(name)
    local one, last = it.record(name), it.last_taken(name)
    if not one.number or last == one.last then return end
    if last then
      one.last = last
      return it.write(name)
    end
    it.drop_number(one)
    if not one.parent then redis.call('ZREM', turns, name) end
    it.refresh(name)
  end

  -- The same of the groups of items, which have left delayed.
  function it.leave_seats_of(items)
    local seen = {}
    for _, item in ipairs(items) do
      local name = group_of(item)
      if name and not seen[name] then
        seen[name] = true
        it.leave_seats(name)
      end
    end
  end

  -- Store a waiting member; false if there are too many groups. `seats`, where given, collects what the caller adds to
  -- delayed.
  function it.enter(item, name, at_head, seats)
    local one = it.record(name)
    if not one.number and not give_number(name, one) then return false end
    local seat
    if at_head then
      one.first = one.first - 1
      seat = one.first
    else
      one.last = one.last + 1
      seat = one.last
    end
    local score = SEATS_FROM + one.number * SEATS + seat % SEATS
    if seats then
      seats[#seats + 1], seats[#seats + 2] = score, item
    else
      redis.call('ZADD', delayed, score, item)
    end
    it.refresh(name)
    return true
  end

  -- How many members wait. Those that were deleted or held have left their seats empty.
  function it.waiting(name)
    local one = it.record(name)
    if not one.number or one.first > one.last then return 0 end
    local from, low, high = SEATS_FROM + one.number * SEATS, one.first % SEATS, one.last % SEATS
    local function number(a, b) return redis.call('ZCOUNT', delayed, from + a, from + b) end
    if low <= high then return number(low, high) end
    return number(low, SEATS - 1) + number(0, high)
  end

  -- The next waiting members, `most` at most, as they stand in delayed: {item, seat, …}. The seats go round.
  function it.members(one, most)
    if not one.number or one.first > one.last then return {} end
    local from, low, high = SEATS_FROM + one.number * SEATS, one.first % SEATS, one.last % SEATS
    local to = low <= high and high or SEATS - 1
    local found = redis.call('ZRANGE', delayed, from + low, from + to, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
    if low <= high or found[1] then return found end
    return redis.call('ZRANGE', delayed, from, from + high, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  end

  -- The next waiting member, and its seat if that is not the next one; nil without one. A seat alone is found sooner than the
  -- first of a range, and without its score.
  function it.next_member(one)
    if not one.number or one.first > one.last then return nil end
    local seat = SEATS_FROM + one.number * SEATS + one.first % SEATS
    local item = redis.call('ZRANGE', delayed, seat, seat, 'BYSCORE')[1]
    if item then return item, nil end
    local found = it.members(one, 1)
    return found[1], found[2]
  end

  -- A member has been read: those after it are next.
  function it.pass(one, score)
    local seat = tonumber(score) - SEATS_FROM - one.number * SEATS
    one.first = one.first + (seat - one.first) % SEATS + 1
  end

  -- Place a member among those of its group. A retry of an ordered group goes to its head.
  function it.place(item, name, at_head)
    local retried = string.sub(name, 1, 1) == '=' and not string.find(item, '^q1 %S+ %d+ 0 ')
    if not it.enter(item, name, at_head or retried) then return false end
    it.vacate(':' .. string.match(item, '^q1 (%S+)'))
    return true
  end

  -- Put members among those of their group; the rest stays for a list of ready. Heads keep their order.
  function it.place_lists(lists, orders, at_head)
    local placed = 0
    for number, items in pairs(lists) do
      local rest, order = {}, {}
      local first, last, step = 1, #items, 1
      if at_head then first, last, step = last, first, -1 end
      for i = first, last, step do
        local name = group_of(items[i])
        if name and it.place(items[i], name, at_head) then
          placed = placed + 1
        else
          local at = at_head and 1 or #rest + 1
          table.insert(rest, at, items[i])
          if orders then table.insert(order, at, orders[number][i]) end
        end
      end
      lists[number] = #rest > 0 and rest or nil
      if orders then orders[number] = #rest > 0 and order or nil end
    end
    return placed
  end

  -- Whether a score of delayed is the seat of a waiting member.
  function it.is_seat(score) return score >= SEATS_FROM and score < MAX_MS end
end
