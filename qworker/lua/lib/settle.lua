-- Outcomes of received messages. In ARGV, from position `at`: the number of leases (their keys
-- stand from KEYS[20] on), and for each lease
--   acks     n, then n indices; or '*' for all that is left in the lease
--   uniques  n, then n × (index, unique key, message id): acks that free a unique key
--   others   n, then n × (kind, index, a, b, c, class, error)
--     n nack      a delay ms, b max receives of the task or '', c first received ms or ''
--                                                                 counted; dead at max receives
--     c crashed   b, c as of a nack                               its worker died of it: counted as a
--                                                                 lone timeout, delivered alone from now on
--     r release   a delay ms; index '*' means all that is left    not counted, to the head
--     s shared    -                                               the worker died, several ran
--     b bury      a reason                                        dead letter
--     d discard   -                                               done, by the handler's wish
--     e expired   -                                               done, its time to live is over

local KINDS = 'ncrsbde'
local MAX_OUTCOMES = 10000

local function read_outcomes(at)
  local leases = {}
  local number = whole(ARGV[at], 0, 64)
  if not number or #KEYS < FIRST_LEASE + number - 1 then return nil, 'leases' end
  at = at + 1
  for l = 1, number do
    local lease = { key = KEYS[FIRST_LEASE + l - 1], all = ARGV[at] == '*', acks = {}, uniques = {}, others = {} }
    lease.id = lease_id(lease.key)
    local acks = lease.all and 0 or whole(ARGV[at], 0, MAX_OUTCOMES)
    if not lease.id or not acks then return nil, 'acks' end
    for i = 1, acks do lease.acks[i] = ARGV[at + i] end
    at = at + acks + 1
    local uniques = whole(ARGV[at], 0, MAX_OUTCOMES)
    if not uniques then return nil, 'uniques' end
    for i = 0, uniques - 1 do
      lease.uniques[i + 1] = { ARGV[at + i * 3 + 1], ARGV[at + i * 3 + 2], ARGV[at + i * 3 + 3] }
    end
    at = at + uniques * 3 + 1
    local others = whole(ARGV[at], 0, MAX_OUTCOMES)
    if not others then return nil, 'others' end
    for i = 0, others - 1 do
      local from = at + i * 7 + 1
      local other = {
        kind = ARGV[from], index = ARGV[from + 1], a = ARGV[from + 2], b = ARGV[from + 3],
        c = ARGV[from + 4], class = ARGV[from + 5], words = ARGV[from + 6],
      }
      if not other.words or #other.kind ~= 1 or not string.find(KINDS, other.kind, 1, true) then
        return nil, 'kind'
      end
      if other.kind == 'n' or other.kind == 'r' then
        other.delay_ms = whole(other.a, 0, MAX_MS)
        if not other.delay_ms then return nil, 'delay_ms' end
      end
      if other.b ~= '' and not whole(other.b, 1, 999999) then return nil, 'max receives' end
      if other.c ~= '' and not whole(other.c, 0, MAX_MS) then return nil, 'first received' end
      lease.others[i + 1] = other
    end
    at = at + others * 7 + 1
    leases[l] = lease
  end
  return leases, at
end

local function settle_ack(lease, results, amounts)
  local acked = 0
  for _, it in ipairs(lease.uniques) do
    local held = redis.call('HDEL', lease.key, it[1])
    if held == 1 then free_unique(it[2], it[3]) end
    acked = acked + held
    if results then results[#results + 1] = held end
  end
  if results then
    for _, index in ipairs(lease.acks) do
      local held = redis.call('HDEL', lease.key, index)
      acked = acked + held
      results[#results + 1] = held
    end
  else
    acked = acked + delete_fields(lease.key, lease.acks)
  end
  amounts.acked = (amounts.acked or 0) + acked
  amounts.stored = (amounts.stored or 0) - acked
  return acked
end

local function ack_rest(lease, amounts)
  local acked = redis.call('HLEN', lease.key)
  redis.call('DEL', lease.key)
  amounts.acked = (amounts.acked or 0) + acked
  amounts.stored = (amounts.stored or 0) - acked
  return acked
end

-- Put one message where its outcome sends it.
local function settle_other(lease, other, index, item, limit, to, now, amounts)
  local function add(name, amount) amounts[name] = (amounts[name] or 0) + amount end
  if other.kind == 'd' or other.kind == 'e' then
    free_unique_of(item)
    add(other.kind == 'd' and 'discarded' or 'expired', 1)
    add('stored', -1)
    return
  end
  local message = delivered(item, lease.id, index, now)
  if not message or other.kind == 'b' then
    if message and other.a ~= 'foreign' then
      message.receives = message.receives + 1
      item = assemble(message)
      free_unique_of(item)
    end
    bury(item, message and other.a or 'foreign', other.class, other.words, now, amounts)
    add('stored', -1)
  elseif other.kind == 's' then
    add('timeouts', 1)
    blame(message, false, limit, to, now, amounts)
  elseif other.kind == 'r' then
    add('released', 1)
    local back = assemble(message)
    if other.delay_ms > 0 then
      redis.call('ZADD', delayed, text(math.min(now + other.delay_ms, MAX_MS)), back)
    else
      put_back(to, message, back)
    end
  else
    -- A worker's death by a message is counted as what it is without a supervisor: a lone timeout. From
    -- that on the message is a suspect, wherever it is moved.
    local counter = other.kind == 'c' and 'timeouts' or 'nacks'
    add(other.kind == 'c' and 'timeouts' or 'nacked', 1)
    message.receives = message.receives + 1
    message[counter] = message[counter] + 1
    if other.c ~= '' then with_flag(message, 'f', other.c) end
    if other.b ~= '' then with_flag(message, 'm', other.b) end
    local back = assemble(message)
    local most = tonumber(string.match(message.flags, ' m=(%d+)')) or limit
    if message.nacks + message.timeouts >= most then
      bury(back, 'max_receives', other.class, other.words, now, amounts)
      free_unique_of(back)
      add('stored', -1)
    elseif other.kind == 'c' then
      table.insert(to.suspects, back)
    elseif other.delay_ms > 0 then
      redis.call('ZADD', delayed, text(math.min(now + other.delay_ms, MAX_MS)), back)
    else
      put(to, to.tails, level(back), back)
    end
  end
end

-- Apply what `read_outcomes` read. Returns the number of messages settled per lease; `results`,
-- where given, gets 1 or 0 per outcome in the order uniques, acks, others.
local function settle(leases, attributes, results, now, amounts)
  local settled, rung = {}, 0
  for l, lease in ipairs(leases) do
    local held = settle_ack(lease, results, amounts)
    local stale = #lease.acks + #lease.uniques - held
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
    if lease.all then held = held + ack_rest(lease, amounts) end
    if redis.call('EXISTS', lease.key) == 0 then redis.call('ZREM', unacked, lease.id) end
    amounts.unacked = (amounts.unacked or 0) - held
    amounts.stale = (amounts.stale or 0) + stale
    settled[l] = held
  end
  return settled, rung
end
