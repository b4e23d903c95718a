-- Applies the outcomes that lib/outcomes.lua read.

-- Acks whose caller says nothing of them are recorded by the script: the items are read before they go.
local function reads_acks(lease)
  return book.on and not book.shed and lease.told_number == 0
end

local function record_held(lease, index)
  local item = redis.call('HGET', lease.key, index)
  if item then record('acked', item, { lease = lease.id, index = index }) end
end

-- The caller's groups count if all of their acks did. Where only some did, `results` tells which; times are of the
-- whole group, so they are left out then.
local function record_told(lease, acked, results, at)
  if lease.told_number == acked or book.shed then
    for _, group in ipairs(lease.told) do add_group(group.text, group.number) end
    book.events = book.events + acked - lease.told_number
  elseif results and not lease.all then
    for _, group in ipairs(lease.told) do
      local first = string.gsub(string.match(group.text, '^[^\n]*'), '^(%S+ %S+) %S+', '%1 -')
      for header in string.gmatch(group.text, '\nq1 ([^\n]*)') do
        if results[at] == 1 then add_row(first, header) end
        at = at + 1
      end
    end
  else
    add_row(string.format('unsure - - - %d_of_%d -', acked, lease.told_number), header_of(''))
  end
end

local function settle_ack(lease, results)
  local acked, reads = 0, reads_acks(lease)
  for _, it in ipairs(lease.uniques) do
    if reads then record_held(lease, it[1]) end
    local held = redis.call('HDEL', lease.key, it[1])
    if held == 1 then free_unique(it[2], it[3]) end
    acked = acked + held
    if results then results[#results + 1] = held end
  end
  if results or reads then
    for _, index in ipairs(lease.acks) do
      if reads then record_held(lease, index) end
      local held = redis.call('HDEL', lease.key, index)
      acked = acked + held
      if results then results[#results + 1] = held end
    end
  else
    acked = acked + delete_fields(lease.key, lease.acks)
  end
  return acked
end

local function ack_rest(lease)
  local acked = redis.call('HLEN', lease.key)
  if reads_acks(lease) then
    for _, entry in ipairs(read_lease(lease.key)) do
      record('acked', entry[2], { lease = lease.id, index = entry[3] })
    end
  end
  redis.call('DEL', lease.key)
  return acked
end

-- Put one message where its outcome sends it.
local function settle_other(lease, other, index, item, limit, to, now, amounts)
  local function add(name, amount) amounts[name] = (amounts[name] or 0) + amount end
  local about = { lease = lease.id, index = index, class = other.class, words = other.words, times = other.times }
  local function tell(event, reason)
    about.reason = reason
    record(event, item, about)
  end
  if other.kind == 'd' or other.kind == 'e' then
    free_unique_of(item)
    local ended = other.kind == 'd' and 'discarded' or 'expired'
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
    blame(message, false, about, limit, to, now, amounts)
  elseif other.kind == 'r' then
    add('released', 1)
    local due_ms = math.min(now + other.delay_ms, MAX_MS)
    ready_from(message, due_ms)
    local back = assemble(message)
    if other.delay_ms > 0 then
      redis.call('ZADD', delayed, text(due_ms), back)
    else
      put_back(to, message, back)
    end
    tell('released')
  else
    -- A worker's death by a message is counted as what it is without a supervisor: a lone timeout. From
    -- that on the message is a suspect, wherever it is moved.
    local crashed = other.kind == 'c'
    local counter = crashed and 'timeouts' or 'nacks'
    add(crashed and 'timeouts' or 'nacked', 1)
    message.receives = message.receives + 1
    message[counter] = message[counter] + 1
    if other.c ~= '' then with_flag(message, 'f', other.c) end
    if other.b ~= '' then with_flag(message, 'm', other.b) end
    local most = number_in(message.flags, ' m=') or limit
    if message.nacks + message.timeouts >= most then
      local back = assemble(message)
      tell('dead', bury(back, 'max_receives', other.class, other.words, now, amounts))
      free_unique_of(back)
      add('stored', -1)
      return
    end
    local due_ms = crashed and now or math.min(now + other.delay_ms, MAX_MS)
    ready_from(message, due_ms)
    local back = assemble(message)
    if crashed then
      table.insert(to.suspects, back)
    elseif other.delay_ms > 0 then
      redis.call('ZADD', delayed, text(due_ms), back)
    else
      put(to, to.tails, level(back), back)
    end
    tell(crashed and 'timed_out' or 'nacked', crashed and 'crashed')
  end
end

-- Apply what `read_outcomes` read. Returns the number of messages settled per lease; `results`,
-- where given, gets 1 or 0 per outcome in the order uniques, acks, others.
local function settle(leases, attributes, results, now, amounts)
  local settled, rung = {}, 0
  for l, lease in ipairs(leases) do
    local first = results and #results + 1
    local held = settle_ack(lease, results)
    local stale, acked = #lease.acks + #lease.uniques - held, held
    local to, gone, moved = places(attributes.levels), {}, {}
    -- Messages leave the lease after they are written elsewhere, so a second outcome still finds them.
    local function move(other, index, item)
      settle_other(lease, other, index, item, attributes.max_receives, to, now, amounts)
      gone[#gone + 1] = index
      moved[index] = true
    end
    for _, other in ipairs(lease.others) do
      if other.index == '*' then
        for _, entry in ipairs(read_lease(lease.key)) do
          if not moved[entry[3]] then move(other, entry[3], entry[2]) end
        end
      else
        local item = not moved[other.index] and redis.call('HGET', lease.key, other.index)
        if item then move(other, other.index, item) else stale = stale + 1 end
        if results then results[#results + 1] = item and 1 or 0 end
      end
    end
    rung = rung + write_places(to)
    held = held + delete_fields(lease.key, gone)
    if lease.all then
      local rest = ack_rest(lease)
      acked, held = acked + rest, held + rest
    end
    if book.on and acked > 0 and not reads_acks(lease) then record_told(lease, acked, results, first) end
    amounts.acked = (amounts.acked or 0) + acked
    amounts.stored = (amounts.stored or 0) - acked
    if redis.call('EXISTS', lease.key) == 0 then redis.call('ZREM', unacked, lease.id) end
    amounts.unacked = (amounts.unacked or 0) - held
    amounts.stale = (amounts.stale or 0) + stale
    settled[l] = held
  end
  return settled, rung
end
