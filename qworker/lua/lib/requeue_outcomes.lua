-- Outcomes other than acks: where each sends its message.

-- When a lease was delivered, in ms, computed from its deadline.
local function received(lease)
  if not lease.received_ms then
    local deadline = tonumber(redis.call('ZSCORE', unacked, lease.id)) or 0
    lease.received_ms = tonumber(received_at(lease.id, deadline, lease.visibility_ms))
  end
  return lease.received_ms
end

-- A run sleeps or waits: it is delayed until the time that was recorded when it first got there. A signal that has come
-- meanwhile lets it go on at once.
local function park(message, other, to, now, received_ms)
  local run, runs = run_key(message.id), runs_key()
  if other.c ~= '' then
    with_flag(message, 'c', '1')
    with_flag(message, 'r', other.c)
  end
  message.receives = message.receives + 1
  message.flags = string.gsub(message.flags, ' k=[^ ]*', '')
  redis.call('ZADD', runs, 'NX', text(now), message.id)
  local until_ms = other.delay_ms < MAX_MS and math.min(now + other.delay_ms, MAX_DUE_MS) or MAX_MS
  if redis.call('HSETNX', run, other.class, text(until_ms)) == 1 then redis.call('HSET', run, '@since', text(now)) end
  if other.words ~= '' and redis.call('HEXISTS', run, other.words) == 1 then
    put_back(to, message, now, received_ms)
    return
  end
  local due_ms = tonumber(redis.call('HGET', run, other.class)) or now
  if due_ms < MAX_MS then ready_from(message, due_ms) end
  local item = assemble(message)
  if has_groups then groups().keep_ordered_slot(item, due_ms) end
  if other.words ~= '' then
    redis.call('HSET', run, '@parked', item, '@waits', other.words)
  else
    -- Nothing wakes a run that sleeps, so its message is found by its due time: a small hash takes half the memory.
    redis.call('HSET', run, '@parked', other.class)
  end
  redis.call('ZADD', delayed, text(due_ms), item)
end

-- Let receives wait; returns false where they cannot: while an operator has paused the sends alone.
local function limit_queue(ms, now)
  local found = redis.call('HMGET', meta, 'paused', 'limited_ms')
  local mode, until_ms = found[1], tonumber(string.match(found[1] or '', '^until (%d+)$'))
  if mode and not until_ms then return mode ~= 'in' end
  limited_ms = math.max(set_back(until_ms or 0, found[2], now), now + ms)
  redis.call('HSET', meta, 'paused', 'until ' .. text(limited_ms), 'limited_ms', text(now))
  return true
end

-- Move one message to where its outcome sends it.
local function settle_other(lease, other, index, item, limit, to, now, amounts)
  local function add(name, amount) amounts[name] = (amounts[name] or 0) + amount end
  local about = { lease = lease.id, index = index, class = other.class, words = other.words, times = other.times }
  local function tell(event, reason)
    about.reason = reason
    record(event, item, about)
  end
  if other.kind == 'd' or other.kind == 'k' then
    local ended = other.kind == 'k' and 'cancelled' or 'discarded'
    if other.kind == 'k' then
      redis.call('ZREM', cancelled, string.match(item, '^q1 ([%w._-]+) ') or lease.id .. '.' .. index)
    end
    end_of(item, ended)
    add(ended, 1)
    add('stored', -1)
    tell(ended)
    return
  end
  local message = delivered(item, lease.id, index, now)
  if not message and kind(item) == 'newer' and (other.kind ~= 'b' or other.a == 'foreign') then
    leave_newer(to, to.tails, item, amounts)
  elseif not message then
    bury_foreign(item, about, now, amounts)
    add('stored', -1)
  elseif other.kind == 'b' then
    local back = item
    if other.a ~= 'foreign' then
      message.receives = message.receives + 1
      back = assemble(message)
      free_unique_of(back)
    end
    tell('dead', bury(back, other.a, other.class, other.words, now, amounts))
    add('stored', -1)
  elseif other.kind == 's' then
    add('timeouts', 1)
    blame(message, false, about, limit, to, now, amounts, received(lease))
  elseif other.kind == 'p' then
    add('parked', 1)
    park(message, other, to, now, received(lease))
    tell('released', other.words == '' and 'sleep' or string.find(other.words, '#', 1, true) and 'gather' or 'signal')
  elseif other.kind == 'r' or other.kind == 'l' then
    add('released', 1)
    local limited = other.kind == 'l'
    if limited then
      local name = has_groups and group_of(item)
      if name and other.b == '2' then name = groups().parent_of(name) or name end
      other.b = '1'
      if name then
        groups().wait_until(name, now + other.delay_ms, now)
        -- The suspects do not wait for groups: one waits among the delayed messages.
        if not is_suspect(message) then other.delay_ms = 0 end
      elseif limit_queue(other.delay_ms, now) then
        other.delay_ms = 0
      end
    end
    -- Its handler had started: the next delivery shows that, but it does not count towards max receives.
    if other.b ~= '' then message.receives = message.receives + 1 end
    if other.c ~= '' then
      add('unknown', 1)
      with_flag(message, 'k', other.c)
    end
    if other.delay_ms > 0 then
      local due_ms = math.min(now + other.delay_ms, MAX_DUE_MS)
      ready_from(message, due_ms)
      local back = assemble(message)
      if has_groups then groups().keep_ordered_slot(back, due_ms) end
      redis.call('ZADD', delayed, text(due_ms), back)
    else
      put_back(to, message, now, received(lease))
    end
    tell('released', limited and 'rate_limited')
  else
    -- A message that killed its worker counts as a lone timeout, as it would without a supervisor. From
    -- then on it is a suspect, wherever it is moved.
    local crashed = other.kind == 'c'
    local counter = crashed and 'timeouts' or 'nacks'
    add(crashed and 'timeouts' or 'nacked', 1)
    message.receives = message.receives + 1
    message[counter] = message[counter] + 1
    if other.c ~= '' then with_flag(message, 'f', other.c) end
    -- This worker knew its task: a worker that does not starts its own waiting time.
    if string.find(message.flags, ' k=', 1, true) then message.flags = string.gsub(message.flags, ' k=[^ ]*', '') end
    if other.b ~= '' then with_flag(message, 'm', other.b) end
    local most = number_in(message.flags, ' m=') or limit
    if message.nacks + message.timeouts >= most then
      local back = assemble(message)
      tell('dead', bury(back, 'max_receives', other.class, other.words, now, amounts))
      free_unique_of(back)
      add('stored', -1)
      return
    end
    local due_ms = crashed and now or math.min(now + other.delay_ms, MAX_DUE_MS)
    ready_from(message, due_ms)
    local back = assemble(message)
    if crashed then
      if has_groups then groups().keep_slot(back) end
      table.insert(to.suspects, back)
    elseif other.delay_ms > 0 then
      if has_groups then groups().keep_ordered_slot(back, due_ms) end
      redis.call('ZADD', delayed, text(due_ms), back)
    else
      put(to, to.tails, level(back), back)
    end
    tell(crashed and 'timed_out' or 'nacked', crashed and 'crashed')
  end
end

-- Move the messages of a loose lease to where their outcomes send them. Returns the numbers of messages that left the
-- lease, of stale outcomes, and of messages that are ready now. `later`: this is not the first lease of the call.
local function settle_others(lease, attributes, results, later, now, amounts)
  local to, gone, moved, backs, stale = places(attributes.levels), {}, {}, {}, 0
  lease.visibility_ms = attributes.visibility_ms
  local function settle_it(other, index, item)
    if other.effects then return settle_kept(lease, other, index, item, to, now, amounts) end
    settle_other(lease, other, index, item, attributes.max_receives, to, now, amounts)
  end
  -- Messages leave the lease after they are written elsewhere, so a second outcome still finds them. Those that go back
  -- come last, in the order of the lease, whatever the order of the outcomes.
  local function move(other, index, item)
    if other.kind == 'r' or other.kind == 'l' or other.kind == 's' then
      backs[#backs + 1] = { number = tonumber(index) or 0, other = other, index = index, item = item }
    else
      settle_it(other, index, item)
    end
    gone[#gone + 1] = index
    moved[index] = true
  end
  local held, number = {}, #lease.others
  for i, other in ipairs(lease.others) do
    if number > 1 and i % CHUNK == 1 then held = read_held(lease, i, math.min(i + CHUNK - 1, number)) end
    if other.index == '*' then
      for _, entry in ipairs(read_lease(lease.key)) do
        if not moved[entry[3]] then move(other, entry[3], entry[2]) end
      end
    else
      local item = not moved[other.index] and (number > 1 and held[(i - 1) % CHUNK + 1]
        or number == 1 and redis.call('HGET', lease.key, other.index))
      if item then move(other, other.index, item) else stale = stale + 1 end
      if results then results[#results + 1] = item and 1 or 0 end
    end
  end
  if #backs > 1 then table.sort(backs, function(a, b) return a.number < b.number end) end
  for _, back in ipairs(backs) do settle_it(back.other, back.index, back.item) end
  local rung = write_places(to, later)
  if has_groups then groups().vacate_all(lease.id, gone) end
  return take_out_of(lease.key, gone), stale, rung
end
