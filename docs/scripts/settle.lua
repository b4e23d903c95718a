#!lua flags=allow-oom
-- settle.lua: ack, nack, release, bury or discard received messages, and say which ones counted.
-- KEYS       see lib/keys.lua; leases: those settled
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]…   outcomes         see lib/settle.lua
-- Returns {'OK', now ms, degraded, {settled per lease}, {1 or 0 per outcome: uniques, acks, others of each lease}}
--   or a refusal: {'BROKEN', key, type} {'ARG', name}. A stale outcome changes nothing and is counted.
-- O(s): s outcomes.
local MAX_MS = 9007199254740992 -- 2^53: the largest integer that a score keeps

-- The time of this call in ms since 1970: the server's. An explicit time is for tests, and
-- refused (nil) unless the queue's meta.test is set: no client clock reaches a script otherwise.
local function clock(override, meta)
  if override ~= '' then
    if redis.call('HGET', meta, 'test') == '1' then return tonumber(override) end
    return nil
  end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Integers as text: `..` writes 1e+14 from fourteen digits on. An infinite score that somebody wrote
-- comes out as a number as well.
local function text(number)
  return string.format('%.0f', math.max(-MAX_MS, math.min(number, MAX_MS)))
end
-- What is validated before the first write. A script is isolated but not rolled back: a command
-- that fails after a write leaves that write behind.

-- The first of {key, type, key, type, …} that holds another type, as a refusal; nil if none does.
local function broken(expected)
  for i = 1, #expected, 2 do
    local found = redis.call('TYPE', expected[i]).ok
    if found ~= 'none' and found ~= expected[i + 1] then
      return { 'BROKEN', expected[i], found }
    end
  end
  return nil
end

-- A whole number within minimum…maximum, or nil.
local function whole(value, minimum, maximum)
  local number = tonumber(value)
  if not number or number ~= math.floor(number) or number < minimum or number > maximum then
    return nil
  end
  return number
end

local MAX_VISIBILITY_MS = 43200000 -- 12 h
-- Counters and doorbell come last and must not fail the call: the change itself is done by then.
-- Returns 1 (degraded) where one of them failed, else 0.
local function count(stats, amounts)
  local degraded = 0
  for name, amount in pairs(amounts) do
    if amount ~= 0 then
      local reply = redis.pcall('HINCRBY', stats, name, string.format('%.0f', amount))
      if type(reply) == 'table' and reply.err then degraded = 1 end
    end
  end
  return degraded
end

-- Wake up to `messages` waiting consumers. The doorbell is bounded: whoever is woken and leaves
-- messages behind rings again, so eight tokens start any number of consumers.
local MAX_TOKENS = 8
local function ring(wake, messages)
  local missing = math.min(messages, MAX_TOKENS) - redis.call('LLEN', wake)
  for _ = 1, missing do redis.call('RPUSH', wake, '1') end
end
-- The keys of a queue as consumers and reapers declare them, in this order in KEYS:
--   1-10 ready … ready:9 LIST · 11 suspect LIST · 12 delayed ZSET · 13 unacked ZSET · 14 wake LIST
--   15 dead STREAM · 16 meta HASH · 17 stats HASH · 18 unique HASH · 19 cancelled ZSET
-- and from 20 on the leases (HASH) of the call.
local suspect, delayed, unacked, wake, dead = KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local meta, stats, unique, cancelled = KEYS[16], KEYS[17], KEYS[18], KEYS[19]
local FIRST_LEASE = 20

local function ready(level_number)
  return KEYS[level_number + 1]
end

local function lease_id(key)
  return string.match(key, ':lease:([%w._-]+)$')
end

-- Priority levels in use, highest first. Level 0 is always one of them.
local function levels_in_use(levels)
  local used = {}
  for number = 9, 1, -1 do
    if levels and string.find(levels, tostring(number), 1, true) then used[#used + 1] = number end
  end
  used[#used + 1] = 0
  return used
end

-- A refusal if a key that this call may write holds another type, else nil.
local function broken_queue(levels, without_leases)
  local expected = {
    suspect, 'list', delayed, 'zset', unacked, 'zset', wake, 'list', dead, 'stream',
    stats, 'hash', unique, 'hash', cancelled, 'zset',
  }
  for _, number in ipairs(levels) do
    expected[#expected + 1] = ready(number)
    expected[#expected + 1] = 'list'
  end
  for i = FIRST_LEASE, without_leases and 0 or #KEYS do
    expected[#expected + 1] = KEYS[i]
    expected[#expected + 1] = 'hash'
  end
  return broken(expected)
end

local DEFAULT_VISIBILITY_MS = 30000
local DEFAULT_MAX_RECEIVES = 5

-- The attributes that scripts go by; the caller has checked that meta is a HASH.
local function read_attributes()
  local found = redis.call('HMGET', meta, 'visibility_ms', 'paused', 'levels', 'max_receives')
  return {
    visibility_ms = whole(found[1], 1, MAX_VISIBILITY_MS) or DEFAULT_VISIBILITY_MS,
    paused_out = found[2] == 'out' or found[2] == 'all',
    levels = levels_in_use(found[3]),
    max_receives = whole(found[4], 1, MAX_MS) or DEFAULT_MAX_RECEIVES,
  }
end
-- The envelope: `q1 <id> <sent_ms> <receives> <nacks> <timeouts> <shared>[ k=v …]\n<body>`.
-- Bodies are never decoded here, and nothing in a list, set or lease can make these raise.

-- own: ours · plain: JSON pushed by anybody · newer: another version of ours · foreign: the rest.
local function kind(item)
  local a, b, c = string.byte(item, 1, 3)
  if a == 113 and b == 49 and c == 32 then return 'own' end -- q1 and a space
  if a == 123 or a == 91 then return 'plain' end -- { [
  if a == 113 and string.find(item, '^q%d+ ') then return 'newer' end
  return 'foreign'
end

-- The value of a header flag of an own item, or nil. `mark` is ' x=' for flag x.
-- Most items have no flag at all, which two short searches tell; a body is never walked through.
local function flag(item, mark)
  local line_end = string.find(item, '\n', 1, true)
  local first = string.find(item, '=', 1, true)
  if not first or not line_end or first > line_end then return nil end
  local head = string.sub(item, 1, line_end)
  local at = string.find(head, mark, 1, true)
  return at and string.match(head, '^[^ \n]+', at + #mark)
end

local function level(item)
  local priority = tonumber(flag(item, ' p=') or 0)
  return priority and priority >= 1 and priority <= 9 and math.floor(priority) or 0
end

local HEADER = '^q1 ([%w._-]+) (%d+) (%d+) (%d+) (%d+) (%d+)([^\n]*)()\n'
local MAX_DIGITS = 6

-- The parts of an own item, or nil where the header does not match (then it is foreign).
local function parse(item)
  local id, sent, receives, nacks, timeouts, shared, flags, at = string.match(item, HEADER)
  if not id or #receives > MAX_DIGITS or #nacks > MAX_DIGITS or #timeouts > MAX_DIGITS
    or #shared > MAX_DIGITS or #sent > 16 then
    return nil
  end
  return {
    id = id, sent = sent, receives = tonumber(receives), nacks = tonumber(nacks),
    timeouts = tonumber(timeouts), shared = tonumber(shared), flags = flags, item = item, at = at,
  }
end

-- A plain item becomes an own one when it is first moved: named by its delivery, so that equal
-- bodies are never equal envelopes.
local function adopt(item, lease_id, index, now)
  return {
    id = lease_id .. '.' .. index, sent = string.format('%.0f', now), receives = 0, nacks = 0,
    timeouts = 0, shared = 0, flags = '', item = item, at = 0,
  }
end

-- The message behind a delivered item, or nil where it is foreign.
local function delivered(item, lease_id, index, now)
  local what = kind(item)
  if what == 'plain' then return adopt(item, lease_id, index, now) end
  if what == 'own' then return parse(item) end
  return nil
end

local function assemble(message)
  local body = message.at > 0 and string.sub(message.item, message.at) or '\n' .. message.item
  return string.format('q1 %s %s %d %d %d %d%s', message.id, message.sent, message.receives,
    message.nacks, message.timeouts, message.shared, message.flags) .. body
end

local function with_flag(message, key, value)
  if not string.find(message.flags, ' ' .. key .. '=', 1, true) then
    message.flags = message.flags .. ' ' .. key .. '=' .. value
  end
end
-- How a message ends, and how it goes back. Each writes the destination; the caller removes the
-- message from where it was afterwards.

local REASON = '^[a-z_]+$'

-- Add to the dead letters. `class` and `words` tell the error, both may be ''.
local function bury(item, reason, class, words, now, amounts)
  if not string.find(reason, REASON) then reason = 'rejected' end
  redis.call('XADD', dead, '*', 'envelope', item, 'reason', reason, 'class', class,
    'error', string.sub(words, 1, 2048), 'died_ms', text(now))
  amounts.dead = (amounts.dead or 0) + 1
  amounts['dead:' .. reason] = (amounts['dead:' .. reason] or 0) + 1
end

-- Free the unique key of a message that has ended, if the key still is this message's.
local function free_unique(key, id)
  local holder = redis.call('HGET', unique, key)
  if holder and string.match(holder, '^%S+') == id then redis.call('HDEL', unique, key) end
end

-- Values of flags are percent-encoded by whoever sends; unique keys stand in the hash as they are.
local function percent_decoded(value)
  return (string.gsub(value, '%%(%x%x)', function(digits) return string.char(tonumber(digits, 16)) end))
end

local function free_unique_of(item)
  local key = flag(item, ' u=')
  if key then free_unique(percent_decoded(key), string.match(item, '^q1 (%S+)')) end
end

-- Expired or cancelled: which of the two, or nil. `tombstones` says whether any cancel is known.
local function over(item, now, tombstones)
  local expiry = tonumber(flag(item, ' x='))
  if expiry and expiry <= now then return 'expired' end
  if tombstones then
    local id = string.match(item, '^q1 (%S+)')
    if id and redis.call('ZSCORE', cancelled, id) then
      redis.call('ZREM', cancelled, id)
      return 'cancelled'
    end
  end
  return nil
end

-- Places to put messages back, filled first and written at once: heads keep their order in front
-- of what is ready. Nobody reads a level that is not in use, so what asks for one goes to level 0.
local function places(levels)
  local used = {}
  for _, number in ipairs(levels) do used[number] = true end
  return { used = used, heads = {}, tails = {}, suspects = {} }
end

local function put(to, list, number, item)
  if not to.used[number] then number = 0 end
  list[number] = list[number] or {}
  table.insert(list[number], item)
end

local CHUNK = 500
local function write_places(to)
  local rung = 0
  for number, items in pairs(to.heads) do
    for last = #items, 1, -CHUNK do
      local reversed = {}
      for i = last, math.max(last - CHUNK + 1, 1), -1 do reversed[#reversed + 1] = items[i] end
      redis.call('LPUSH', ready(number), unpack(reversed))
    end
    rung = rung + #items
  end
  for number, items in pairs(to.tails) do
    for first = 1, #items, CHUNK do
      redis.call('RPUSH', ready(number), unpack(items, first, math.min(first + CHUNK - 1, #items)))
    end
    rung = rung + #items
  end
  for first = 1, #to.suspects, CHUNK do
    redis.call('RPUSH', suspect, unpack(to.suspects, first, math.min(first + CHUNK - 1, #to.suspects)))
  end
  return rung + #to.suspects
end

-- Whether a message is to be delivered alone: it may have cost a worker its life.
local function is_suspect(message)
  return message ~= nil and (message.timeouts > 0 or message.shared >= 2)
end

-- To the head of what is ready, or to the suspects whose one it is.
local function put_back(to, message, item)
  if is_suspect(message) then
    table.insert(to.suspects, item)
  else
    put(to, to.heads, level(item), item)
  end
end

-- A delivery that ended in nobody's word (the lease ran out, the worker died). Alone in its lease
-- a message is to blame (timeouts); in company all only share it, and from the second time on each
-- goes to `suspect`, to be delivered alone.
local function blame(message, alone, limit, to, now, amounts)
  message.receives = message.receives + 1
  if alone then message.timeouts = message.timeouts + 1 else message.shared = message.shared + 1 end
  local item = assemble(message)
  limit = tonumber(string.match(message.flags, ' m=(%d+)')) or limit
  if message.nacks + message.timeouts >= limit then
    bury(item, 'max_receives', '', '', now, amounts)
    free_unique_of(item)
    amounts.stored = (amounts.stored or 0) - 1
  else
    put_back(to, message, item)
  end
end
-- A lease is a HASH index → item. Over 64 bytes it forgets its order, so it is read by number.
-- Returns {{index, item}, …} in order.
local function read_lease(key)
  local flat = redis.call('HGETALL', key)
  local entries = {}
  for i = 1, #flat, 2 do entries[#entries + 1] = { tonumber(flat[i]) or 0, flat[i + 1], flat[i] } end
  table.sort(entries, function(a, b) return a[1] < b[1] end)
  return entries
end

local function delete_fields(key, fields)
  local gone = 0
  for first = 1, #fields, 1000 do
    gone = gone + redis.call('HDEL', key, unpack(fields, first, math.min(first + 999, #fields)))
  end
  return gone
end
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

local refused = broken({ meta, 'hash' })
if refused then return refused end
local attributes = read_attributes()
refused = broken_queue(attributes.levels)
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now then return { 'ARG', 'now' } end
local leases, problem = read_outcomes(2)
if not leases then return { 'ARG', problem } end

local amounts, results = {}, {}
local settled, rung = settle(leases, attributes, results, now, amounts)
local degraded = count(stats, amounts)
if rung > 0 and not attributes.paused_out then ring(wake, rung) end
return { 'OK', text(now), degraded, settled, results }
