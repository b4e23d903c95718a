#!lua flags=allow-oom
-- split.lua: give one received message a lease and a visibility deadline of its own.
-- ROLES      consumer, operator
-- KEYS[1]    unacked ZSET     lease id → deadline ms
-- KEYS[2]    meta HASH
-- KEYS[3]    lease HASH       that holds the message
-- KEYS[4]    lease HASH       new, chosen by the caller
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    index            of the message in its lease; the message keeps it, and with it the blame at expiry
-- ARGV[3]    visibility ms    from now, 0-43200000 (12 h); 0 means visible at the next reap; '' the message's own, or
--                             the queue's
-- ARGV[4]    half             may be left out; 1: refuse once half of the message's time to live has passed
-- Returns {'OK', now ms, deadline ms} or {'OK', now ms, 0} if the receipt is stale,
--   or a refusal: {'LEASEUSED', id} {'TOOLATE', message id, half ms} {'BROKEN', key, type} {'ARG', name}
-- O(log u): u leases.
local MAX_MS = 9007199254740992 -- 2^53: the largest integer that a score keeps

-- Integers as text: `..` writes 1e+14 from fourteen digits on. An infinite score, which only another program
-- writes, becomes the largest number.
local function text(number)
  return string.format('%.0f', math.max(-MAX_MS, math.min(number, MAX_MS)))
end

-- The time of this call in ms since 1970, also as text: the server's. An explicit time is for tests, and
-- refused (nil) unless the queue's meta.test is set: no client clock reaches a script otherwise.
local function clock(override, meta)
  if override ~= '' then
    local now = redis.call('HGET', meta, 'test') == '1' and tonumber(override) or nil
    return now, now and text(now)
  end
  local t = redis.call('TIME')
  local now = t[1] .. string.sub('00000' .. t[2], -6, -4) -- the thousands of the microseconds
  return tonumber(now), now
end
-- Checks before the first write. A script is isolated but not rolled back: a command that fails
-- after a write leaves that write behind.

-- A refusal that names the first of {key, type, key, type, …} that holds another type; nil if none does. Most keys of a
-- queue usually do not exist: EXISTS counts those that do, and the types are read until all of these are found. So the
-- likely ones come first.
local function broken(expected)
  local keys = {}
  for i = 1, #expected, 2 do keys[#keys + 1] = expected[i] end
  local unseen = redis.call('EXISTS', unpack(keys))
  for i = 1, #expected, 2 do
    if unseen == 0 then return nil end
    local found = redis.call('TYPE', expected[i]).ok
    if found ~= 'none' then
      if found ~= expected[i + 1] then return { 'BROKEN', expected[i], found } end
      unseen = unseen - 1
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
local DEFAULT_VISIBILITY_MS = 30000
-- The envelope: `q1 <id> <sent_ms> <receives> <nacks> <timeouts> <shared>[ k=v …]\n<body>`.
-- These functions never decode a body, and never raise, whatever an item contains.

local byte, find = string.byte, string.find -- called for every item; a global is looked up by name at each use

-- own: our format · plain: JSON pushed by another program · newer: another version of our format · foreign: the rest.
local function kind(item)
  local a, b, c = byte(item, 1, 3)
  if a == 113 and b == 49 and c == 32 then return 'own' end -- q1 and a space
  if a == 123 or a == 91 then return 'plain' end -- { [
  if a == 113 and string.find(item, '^q%d+ ') then return 'newer' end
  return 'foreign'
end

-- The header of an own item, without `q1 `; '' if it has no end. Lookups use the header alone, so that no body is ever
-- searched.
local function header(item)
  local stop = string.find(item, '\n', 1, true)
  return stop and string.sub(item, 4, stop - 1) or ''
end

-- Whether the header of an own item may have a flag; without a copy of it.
local function has_flags(item)
  local at = find(item, '=', 1, true)
  return at and at < (find(item, '\n', 1, true) or 0)
end

-- The value of a flag in a header, or nil. `mark` is ' x=' for flag x. Most headers have no flag at all.
local function flag_in(head, mark)
  if not string.find(head, '=', 1, true) then return nil end
  local at = string.find(head, mark, 1, true)
  return at and string.match(head, '^[^ ]+', at + #mark)
end

-- The value of a flag of an own item, or nil.
local function flag(item, mark)
  return flag_in(header(item), mark)
end

-- The value of a flag that is a whole number of at most 2^53, otherwise nil; the same rule as in `wire/numbers.py`.
-- Compared as text: beyond that a number is rounded before it can be compared.
local MAX_NUMBER = '9007199254740992'
local function number_in(head, mark)
  local value = flag_in(head, mark)
  if not value or not string.find(value, '^%d+$') then return nil end
  return (#value < #MAX_NUMBER or #value == #MAX_NUMBER and value <= MAX_NUMBER) and tonumber(value) or nil
end

-- The priority that a header asks for.
local function level_in(head)
  local priority = number_in(head, ' p=') or 0
  return priority <= 9 and priority or 0
end

local function level(item)
  return level_in(header(item))
end

-- How many items of a list to read next, within `bytes_left` judging by those already read: a read copies whole items,
-- and bodies may be large. So the first one is read alone; a hundred small ones take four reads.
local function chunk_size(number, bytes, bytes_left)
  local MAX_CHUNK = 33
  if number == 0 then return 1 end
  return math.max(1, math.min(MAX_CHUNK, math.ceil(bytes_left * number / math.max(bytes, 1))))
end

local HEADER = '^q1 ([%w._-]+) (%d+) (%d+) (%d+) (%d+) (%d+)([^\n]*)()\n'
local MAX_DIGITS, MAX_ID = 6, 64

-- The parts of an own item, or nil if the header does not match (then it is foreign).
local function parse(item)
  local id, sent, receives, nacks, timeouts, shared, flags, at = string.match(item, HEADER)
  if not id or #receives > MAX_DIGITS or #nacks > MAX_DIGITS or #timeouts > MAX_DIGITS
    or #shared > MAX_DIGITS or #sent > 16 or #id > MAX_ID then
    return nil
  end
  if flags ~= '' and string.gsub(flags, ' [a-z]=[^ ]*', '') ~= '' then return nil end
  return {
    id = id, sent = sent, receives = tonumber(receives), nacks = tonumber(nacks),
    timeouts = tonumber(timeouts), shared = tonumber(shared), flags = flags, item = item, at = at,
  }
end

-- A plain item becomes an own one when it is first moved. Its id comes from its delivery, so that
-- equal bodies never make equal envelopes.
local function adopt(item, lease_id, index, now)
  return {
    id = lease_id .. '.' .. index, sent = string.format('%.0f', now), receives = 0, nacks = 0,
    timeouts = 0, shared = 0, flags = '', item = item, at = 0,
  }
end

-- The message of a delivered item, or nil if it is foreign.
local function delivered(item, lease_id, index, now)
  local what = kind(item)
  if what == 'plain' then return adopt(item, lease_id, index, now) end
  if what == 'own' then return parse(item) end
  return nil
end

-- Formatting a number is slow, and most repeat: counters are small, and times are those of the call.
local DIGITS = { [0] = '0', '1', '2', '3', '4', '5', '6', '7', '8', '9' }
local function digits(number)
  return DIGITS[number] or string.format('%d', number)
end

local formatted_ms, formatted
local function time_text(at_ms)
  if at_ms ~= formatted_ms then formatted_ms, formatted = at_ms, text(at_ms) end
  return formatted
end

local function assemble(message)
  local body = message.at > 0 and string.sub(message.item, message.at) or '\n' .. message.item
  return 'q1 ' .. message.id .. ' ' .. message.sent .. ' ' .. digits(message.receives) .. ' ' .. digits(message.nacks)
    .. ' ' .. digits(message.timeouts) .. ' ' .. digits(message.shared) .. message.flags .. body
end

local function with_flag(message, key, value)
  if not string.find(message.flags, ' ' .. key .. '=', 1, true) then
    message.flags = message.flags .. ' ' .. key .. '=' .. value
  end
end

-- Note when a message becomes ready again: the flag `t`, from which its next wait is measured. It loses its old place.
local function ready_from(message, at_ms)
  local flags = message.flags
  if string.find(flags, ' t=', 1, true) then flags = string.gsub(flags, ' t=[^ ]*', '') end
  if string.find(flags, ' o=', 1, true) then flags = string.gsub(flags, ' o=[^ ]*', '') end
  message.flags = flags .. ' t=' .. time_text(at_ms)
end
-- A lease is a HASH of one of two shapes. Messages that were delivered together share one field until one of them is
-- settled separately, which is rare:   batch → their items as a MessagePack array, index 1 the first
-- After that, and for a message that was delivered alone (index 0):   index → item

local MAX_FIELDS = 500 -- of one command

local function write_items(key, items)
  if #items == 1 then
    redis.call('HSET', key, '0', items[1])
  else
    redis.call('HSET', key, 'batch', cmsgpack.pack(items))
  end
end

-- The items of such a field; nil if it is not such an array.
local function unpacked(batch)
  local read, items = pcall(cmsgpack.unpack, batch)
  if not read or type(items) ~= 'table' or #items == 0 then return nil end
  for _, item in ipairs(items) do
    if type(item) ~= 'string' then return nil end
  end
  return items
end

-- Returns {{number, item, index}, …} in order; the index is a number as well where the lease is not loose.
local function read_lease(key)
  local flat = redis.call('HGETALL', key)
  local entries, sorted, last = {}, true, -1
  for i = 1, #flat, 2 do
    local items = flat[i] == 'batch' and unpacked(flat[i + 1])
    if items then
      for number, item in ipairs(items) do entries[#entries + 1] = { number, item, number } end
      sorted = #flat == 2
    else
      local number = tonumber(flat[i]) or 0
      sorted, last = sorted and number > last, number
      entries[#entries + 1] = { number, flat[i + 1], flat[i] }
    end
  end
  -- Over 64 bytes a HASH forgets the order of its fields.
  if not sorted then table.sort(entries, function(a, b) return a[1] < b[1] end) end
  return entries
end

-- The number of messages in the shared field, from the first bytes of the array; nil without such a field.
local function batch_size(key)
  local first, high, low = string.byte(redis.call('HGET', key, 'batch') or '', 1, 3)
  if first == 0xdc and low then return high * 256 + low end
  return first and (first >= 0x90 and first <= 0x9f and first - 0x90 or 1)
end

-- The number of messages in a lease.
local function count_held(key)
  return (batch_size(key) or 1) + redis.call('HLEN', key) - 1
end

-- Give each message a field of its own, before one of them is removed.
local function loosen(key)
  local batch = redis.call('HGET', key, 'batch')
  local items = batch and unpacked(batch)
  if not items then return end
  for first = 1, #items, MAX_FIELDS do
    local fields = {}
    for i = first, math.min(first + MAX_FIELDS - 1, #items) do
      fields[#fields + 1] = i
      fields[#fields + 1] = items[i]
    end
    redis.call('HSET', key, unpack(fields))
  end
  redis.call('HDEL', key, 'batch')
end

-- Read the items of outcomes of a loose lease, false for those that are gone.
local function read_held(lease, first, last)
  local indices = {}
  for i = first, last do indices[#indices + 1] = lease.others[i].index end
  return redis.call('HMGET', lease.key, unpack(indices))
end

-- Remove messages from a loose lease; returns how many of them it held.
local function take_out_of(key, indices)
  local gone = 0
  for first = 1, #indices, MAX_FIELDS do
    gone = gone + redis.call('HDEL', key, unpack(indices, first, math.min(first + MAX_FIELDS - 1, #indices)))
  end
  return gone
end

-- When a lease was delivered or last extended, in ms as text: its deadline minus its visibility, which is the queue's
-- unless its id names another (`<random>-<counter>-<visibility ms>`).
local function received_at(id, deadline, visibility_ms)
  visibility_ms = whole(string.match(id, '^%w+%-%d+%-(%d+)$'), 1, MAX_VISIBILITY_MS) or visibility_ms
  return text(math.max(0, deadline - visibility_ms))
end
-- The slots of a batch share a field of `slots` until some of its messages are settled apart from the others, as the messages
-- share one of the lease:   <lease> → the groups of its messages as a MessagePack array, index 1 the first, false for none
-- After that, and for a message that was delivered alone:   <lease>:<index> → group
local packed_slots = {}
do
local MAX_FIELDS = 500 -- of one command

-- Whether no group in the field of a batch is counted.
function packed_slots.are_uncounted(found) return string.byte(found) == 1 end

-- The groups in the field of a batch, with a \1 before those that are not counted; nil if it is not such an array.
function packed_slots.unpacked(found)
  local mark = packed_slots.are_uncounted(found) and '\1' or ''
  local sound, names = pcall(cmsgpack.unpack, mark == '' and found or string.sub(found, 2))
  if not sound or type(names) ~= 'table' then return nil end
  for _, name in ipairs(names) do
    if name and type(name) ~= 'string' then return nil end
  end
  if mark ~= '' then
    for i, name in ipairs(names) do names[i] = name and mark .. name end
  end
  return names
end

-- The groups of a batch; nil if its slots share no field.
function packed_slots.read(slots, lease_id)
  local found = redis.call('HGET', slots, lease_id)
  return found and packed_slots.unpacked(found) or nil
end

-- Give each slot a field of its own.
function packed_slots.loosen(slots, lease_id)
  local names = packed_slots.read(slots, lease_id)
  if not names then return end
  local fields = {}
  for i, name in ipairs(names) do
    if name then fields[#fields + 1], fields[#fields + 2] = lease_id .. ':' .. i, name end
    if #fields >= MAX_FIELDS or i == #names and #fields > 0 then
      redis.call('HSET', slots, unpack(fields))
      fields = {}
    end
  end
  redis.call('HDEL', slots, lease_id)
end

-- The messages of a new lease take a slot each, in their order; `names`: their groups, false for none, or with a \1 before one
-- whose record does not count them. With a `mark` there are several, and none of their records does.
function packed_slots.hold(slots, lease_id, names, mark)
  if #names == 1 then
    redis.call('HSET', slots, lease_id .. ':0', names[1])
  else
    redis.call('HSET', slots, lease_id, mark .. cmsgpack.pack(names))
  end
end

-- Visit about `most` slots. `cursor`: '0' at first; of HSCAN, with the index and the field where the next call goes on if there
-- are more, as a batch may have. Returns the next cursor, '0' at the end.
function packed_slots.each(slots, cursor, most, visit)
  local seen, at, passed, field = 0, string.match(cursor, '^(%d+) ?(%d*) ?(.*)$')
  passed = tonumber(passed) or 0
  repeat
    local page, fields, values = redis.call('HSCAN', slots, at, 'COUNT', 1), {}, {}
    for i = 1, #page[2], 2 do fields[#fields + 1], values[page[2][i]] = page[2][i], page[2][i + 1] end
    table.sort(fields)
    for _, each in ipairs(fields) do
      local batch = each >= field and not string.find(each, ':', 1, true) and packed_slots.unpacked(values[each])
      batch = batch or each >= field and { values[each] } or {}
      for i = (each == field and passed or 0) + 1, #batch do
        if seen >= most then return at .. ' ' .. (i - 1) .. ' ' .. each end
        seen = seen + 1
        if batch[i] then visit(batch[i]) end
      end
    end
    at, field, seen = page[1], '', seen + 1
  until at == '0' or seen >= most
  return at
end

-- The cursor of HSCAN in such a cursor.
function packed_slots.scanned(cursor) return string.match(cursor, '^(%d+) %d+ .+$') or cursor end
end
-- A message moves to another lease, and the slot of its group with it.
local function move_slot(meta, item, old_id, new_id, index)
  if kind(item) ~= 'own' or not has_flags(item) or not flag(item, ' g=') then return end
  local slots = string.sub(meta, 1, -5) .. 'slots'
  packed_slots.loosen(slots, old_id)
  local name = redis.call('HGET', slots, old_id .. ':' .. index)
  if not name then return end
  redis.call('HSET', slots, new_id .. ':' .. index, name)
  redis.call('HDEL', slots, old_id .. ':' .. index)
end

local unacked, meta, old, new = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local refused = broken({ unacked, 'zset', meta, 'hash', old, 'hash', new, 'hash' })
if refused then return refused end
local now, own = clock(ARGV[1], meta), ARGV[3] == ''
local visibility_ms = own and DEFAULT_VISIBILITY_MS or whole(ARGV[3], 0, MAX_VISIBILITY_MS)
local old_id, new_id = string.match(old, ':lease:([%w._-]+)$'), string.match(new, ':lease:([%w._-]+)$')
if not now or not visibility_ms or not old_id or not new_id then return { 'ARG', 'visibility_ms' } end
loosen(old)
if redis.call('EXISTS', new) == 1 then
  -- A repetition of this call gets the same answer; an id that another call used is refused.
  if redis.call('HEXISTS', new, ARGV[2]) == 0 or redis.call('HEXISTS', old, ARGV[2]) == 1 then
    return { 'LEASEUSED', new_id }
  end
  return { 'OK', text(now), text(tonumber(redis.call('ZSCORE', unacked, new_id)) or 0) }
end
local item = redis.call('HGET', old, ARGV[2])
if not item then return { 'OK', text(now), '0' } end
if ARGV[4] == '1' then
  local message = kind(item) == 'own' and parse(item)
  local expiry = message and number_in(message.flags, ' x=')
  local half = expiry and math.floor((tonumber(message.sent) + expiry) / 2)
  if half and now > half then return { 'TOOLATE', message.id, text(half) } end
end
if own then
  visibility_ms = whole(kind(item) == 'own' and flag(item, ' v='), 1, MAX_VISIBILITY_MS)
    or whole(redis.call('HGET', meta, 'visibility_ms'), 1, MAX_VISIBILITY_MS) or DEFAULT_VISIBILITY_MS
end
-- The id of a plain message comes from its lease, so it gets its id before it leaves the lease.
if kind(item) == 'plain' then item = assemble(adopt(item, old_id, ARGV[2], now)) end
local deadline = text(now + visibility_ms)
redis.call('HSET', new, ARGV[2], item)
redis.call('ZADD', unacked, deadline, new_id)
redis.call('HDEL', old, ARGV[2])
move_slot(meta, item, old_id, new_id, ARGV[2])
if redis.call('EXISTS', old) == 0 then redis.call('ZREM', unacked, old_id) end
return { 'OK', text(now), deadline }
