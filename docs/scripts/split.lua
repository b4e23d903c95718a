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
local unacked, meta, old, new = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
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
-- What is kept of groups, as it is stored: their records, and the virtual times of their queue. See lib/groups.lua.

-- Its functions are made here, as a queue without groups needs none.
local function group_records(states)
  local MAX_RECENT = 4096 -- bytes
  local it, delayed = {}, string.sub(states, 1, -7) .. 'delayed'

  -- Virtual times: of the queue, and of its messages without a group; nil if the key holds another type.
  function it.read_tags()
    local found = redis.pcall('HMGET', states, '@tag', '@plain', '@ms', '@looking', '@recent', '@before', '@start', '@number',
      '@free', '@again', '@taken')
    if found.err then return nil end
    return {
      queue = tonumber(found[1]) or 0, plain = tonumber(found[2]) or 0, at_ms = tonumber(found[3]) or 0, looking = found[4],
      recent = found[5] or '', before = found[6] or '', start = tonumber(found[7]) or 0, number = tonumber(found[8]) or 0,
      free = tonumber(found[9]), again = tonumber(found[10]) or -1, taken = found[11] or '',
    }
  end

  -- Numbers of groups go round: each is the next count, `@number`. One is free if no seat of it is taken. To see that takes
  -- the right to read messages, which a sender need not have: so those who have it look ahead, receives long before it is
  -- needed. What is free then is so until its count comes, because none but that gives it.
  local NUMBERS, FIRST_SEAT, SEATS = 2097152, 4503599627370496, 2147483648 -- 2^21, 2^52, 2^31
  local AHEAD, MAX_TAKEN = 1048576, 16 -- half a round: what a call gives before it writes is not there

  local function may_look() return redis.acl_check_cmd('ZCOUNT', delayed, 0, 0) end

  -- See which numbers after a count are free: those up to `@free`, but for those in `@taken`. Receives look again at `@again`.
  function it.look_ahead(tags, count)
    local last, taken = count + AHEAD, {}
    local function find_taken(from, to)
      local low, high = FIRST_SEAT + from % NUMBERS * SEATS, FIRST_SEAT + (to % NUMBERS + 1) * SEATS - 1
      if #taken > MAX_TAKEN or redis.call('ZCOUNT', delayed, low, high) == 0 then return end
      if from == to then
        taken[#taken + 1] = text(from)
        return
      end
      local middle = math.floor((from + to) / 2)
      find_taken(from, middle)
      find_taken(middle + 1, to)
    end
    local round = last - last % NUMBERS
    if round > count + 1 then find_taken(count + 1, round - 1) end
    find_taken(math.max(round, count + 1), last)
    if #taken > MAX_TAKEN then last = tonumber(table.remove(taken)) - 1 end
    tags.free, tags.again, tags.taken = last, math.floor((count + last) / 2), #taken > 0 and ' ' .. table.concat(taken, ' ') .. ' ' or ''
    redis.call('HSET', states, '@free', text(last), '@again', text(tags.again), '@taken', tags.taken)
  end

  -- The number for a group that comes at `count`, or nil if it is taken.
  function it.number_at(tags, count)
    tags.number = count
    if count > (tags.free or -1) then
      if may_look() then
        it.look_ahead(tags, count - 1)
      elseif not tags.free then
        -- No receive has looked yet: earlier versions note numbers in fields.
        return redis.call('HSETNX', states, '#' .. text(count % NUMBERS), 1) == 1 and count % NUMBERS or nil
      end
      if count > tags.free then return nil end
    end
    if tags.taken ~= '' and string.find(tags.taken, ' ' .. text(count) .. ' ', 1, true) then return nil end
    return count % NUMBERS
  end

  function it.write_tags(tags)
    redis.call('HSET', states, '@tag', tags.queue, '@plain', tags.plain, '@ms', text(tags.at_ms))
    if tags.noted then redis.call('HSET', states, '@recent', tags.recent, '@before', tags.before) end
    if tags.number > tags.again and may_look() then it.look_ahead(tags, tags.number) end
  end

  -- Groups without a record have run empty: what comes to them next begins a turn later, else one that sends whenever it is
  -- received would always be next. Of more than there is room for, those count that were the first in line.
  function it.note_recent(tags, names)
    local added = table.concat(names, '\n') .. '\n'
    local function begin_note()
      local since = tonumber(string.match(tags.recent, '^[^\n]*'))
      tags.before = since and tags.queue < since + 2 and tags.recent or ''
      tags.recent = string.format('%.17g\n', tags.queue)
    end
    local function fill()
      local fits, room = added, MAX_RECENT - #tags.recent
      if #added > room then fits = string.match(string.sub(added, 1, math.max(0, room)), '^.*\n') or '' end
      tags.recent, added = tags.recent .. fits, string.sub(added, #fits + 1)
    end
    local since = tonumber(string.match(tags.recent, '^[^\n]*'))
    if not since or tags.queue >= since + 1 then begin_note() end
    fill()
    if added ~= '' then
      begin_note()
      fill()
    end
    tags.noted = true
  end

  -- Whether a group has run empty within the last turn. Notes are searched for a few names, and read into a table for more.
  local FEW, asked, known = 8, 0, nil
  function it.is_recent(tags, name)
    local line = '\n' .. name .. '\n'
    local function is_near(noted, turns_ago)
      local since = tonumber(string.match(noted, '^[^\n]*'))
      return since and tags.queue < since + turns_ago
    end
    local recent, before = is_near(tags.recent, 2) and tags.recent or '', is_near(tags.before, 3) and tags.before or ''
    asked = asked + 1
    if asked <= FEW then return string.find(recent, line, 1, true) or string.find(before, line, 1, true) end
    if not known or known.recent ~= recent or known.before ~= before then
      known = { recent = recent, before = before, names = {} }
      for _, noted in ipairs({ recent, before }) do
        for each in string.gmatch(noted, '\n([^\n]+)') do known.names[each] = true end
      end
    end
    return known.names[name]
  end

  -- Where a group or parent begins to stand in line. Without a record it is new: those of one call begin together, after those
  -- of earlier calls, else names that come first would keep others waiting for as long as new ones arrive. They begin within a
  -- turn of the queue. `one`: its `tag`, and whether it is `known`. Also returns where the next new one begins, if that moves.
  local STEP, begun = 2 ^ -17, nil
  function it.start_of(tags, one)
    if one.known then return math.max(one.tag, tags.queue) end
    local latest = tags.queue + 1
    if not begun then begun = math.min(math.max(tags.start, tags.queue), latest) end
    tags.start = math.min(math.max(tags.start, begun) + STEP, latest)
    return math.max(one.tag, begun), tags.start
  end

  -- Most numbers of a call repeat, and packing one costs more than finding it.
  local packed = setmetatable({}, { __index = function(known, number)
    local bytes = cmsgpack.pack(number)
    if number == number then known[number] = bytes end
    return bytes
  end })

  -- A record as it is stored. `number`: -1 without waiting members.
  function it.pack(number, first, last, busy, turn, tag, rate_ms, wait_ms)
    local waits = rate_ms == 0 and wait_ms == 0 and '\0\0' or packed[rate_ms] .. packed[wait_ms]
    return '\152' .. (number < 0 and '\255' or cmsgpack.pack(number)) .. packed[first] .. packed[last] .. packed[busy]
      .. packed[turn] .. packed[tag] .. waits
  end

  -- The values of a record as it is stored; nil without one.
  function it.unpack(found)
    if not found or string.byte(found) ~= 0x98 then return nil end
    local sound, _, number, first, last, busy, turn, tag, rate_ms, wait_ms = pcall(cmsgpack.unpack_limit, found, 8, 1)
    if not sound or type(number) ~= 'number' or type(wait_ms) ~= 'number' then return nil end
    return number, first, last, busy, turn, tag, rate_ms, wait_ms
  end

  -- The messages of a new lease take a slot each, in their order, see lib/packed_slots.lua. `names`: their groups, false for
  -- none, or with a \1 before one whose record does not count them. With a `mark` there are several, and none of their records
  -- does.
  function it.hold(slots, lease_id, names, mark)
    if #names == 1 then
      redis.call('HSET', slots, lease_id .. ':0', names[1])
    else
      redis.call('HSET', slots, lease_id, mark .. cmsgpack.pack(names))
    end
  end
  return it
end
-- Groups: messages with flag g, which take turns. Made only where a call meets one.
--   delayed ZSET    a waiting member's score is not a time but its seat: 2^52 + number of its group × 2^31 + place. So it
--                   is in sight of all that look at delayed messages, and never due.
--   groups HASH     `:<group>` → a MessagePack array: number or -1, first, last, busy, turn, tag, rate ms, wait ms;
--                   `@tag`, `@plain`: the virtual times of the queue and of its messages without a group; `@number`: how many
--                   numbers were given; `@free`, `@again`, `@taken`: which are free, see group_records.lua; `@ms`: the last
--                   receive; `@looking`: groups are looking at limits that have changed, or (c…) calls count what is in
--                   flight, see count_page; each with the time of the last such call behind a space; `@recent`, `@before`:
--                   a virtual time, and the groups that ran empty since; `@start`: where the next new one begins;
--                   `*<parent>`: how many of a shared limit have started
--   turns ZSET      what may run, a group or a parent (`acme/` of `acme/ann`) → its virtual time
--   children ZSET   all 0: `<parent>\n<turn, 16 digits>\n<group>`: groups of a parent that may run, in their turn
--   later ZSET      a group or parent that must wait → until when, in ms
--   slots HASH      `<lease>` of a batch, or `<lease>:<index>` of a delivered member → group, see packed_slots.lua;
--                   `:<message id>` of one that keeps its slot while it waits, with a \2 before the group none of its
--                   parent. With a \1 before the group its record does not count the member: nothing limits it
--   limits HASH     group, parent, `<parent>*`, `*` or `*/` → `[c=<concurrency>] [r=<count>/<ms>] [b=<burst>] [w=<weight>] [m=<members>]`;
--                   with `s=<version>` the share of a limit over several queues, see share.lua
-- Their keys are made here: they are in the slot of the queue. meta has `groups` 1, which short ways ask for, and `journal`.
-- Start-time fair queueing: the smallest tag is next, and moves on by 1 / weight for each message. A group that begins to wait
-- starts at the virtual time of the queue, so it has no credit; a new one after earlier ones that are new as well. A group
-- whose name begins with `=` is ordered: one at a time.
-- A call that changes many groups does so between `begin` and `finish`, which looks at each once, and writes all together.

local groups, group_of, more_of_groups = nil, nil, {}
do
local MAX_GROUP = 257

-- The group of an item, or nil. Lists and leases may hold items of other programs: an invalid name is none.
function group_of(item)
  local at = string.find(item, ' g=', 1, true)
  local usual = at and string.match(item, '^([%w_.:-]+)[ \n]', at + 3)
  if usual and #usual <= MAX_GROUP and string.sub(item, 1, 3) == 'q1 ' and at < (string.find(item, '\n', 1, true) or 0) then
    return usual
  end
  local value = string.match(item, '^q1 [^\n]- g=([^ \n]+)')
  if not value then return nil end
  value = string.gsub(value, '%%(%x%x)', function(pair) return string.char(tonumber(pair, 16)) end)
  if #value > MAX_GROUP or string.find(value, '%c') or not string.find(value, '^=?[^/=][^/]*/?[^/]*$')
    or string.sub(value, -1) == '/' then
    return nil
  end
  return value
end

local made
local byte, find = string.byte, string.find -- called for every group
local ZEROS = { __index = { turn = 0, rate_ms = 0, wait_ms = 0 } }
function groups()
  if made then return made end
  local base = string.sub(meta, 1, -5)
  local states, turns, children = base .. 'groups', base .. 'turns', base .. 'children'
  local later, slots, limits = base .. 'later', base .. 'slots', base .. 'limits'
  local it, records, tags, stored = { opened = 0 }, {}, nil, group_records(states)
  local AT_ONCE = 1000 -- values of one command
  local together = nil -- between `begin` and `finish`: what waits to be written

  -- The parent of a group, or nil.
  function it.parent_of(name)
    if records[name] then return records[name].parent end
    return string.find(name, '/', 1, true) and string.match(name, '^=?([^/]+/)[^/]') or nil
  end

  -- Virtual times, see lib/group_records.lua.
  function it.tags()
    tags = tags or stored.read_tags()
    return tags
  end

  -- No calls of a caller of limits are to come.
  function it.end_looking()
    if it.tags().looking then redis.call('HDEL', states, '@looking') end
    tags.looking = nil
  end

  function it.write_tags() stored.write_tags(tags) end

  -- In `one`: `number` is nil without waiting members; `turn`, `rate_ms` and `wait_ms` only if they are not 0, because most
  -- groups have none; `stale` and `dirty` say what `finish` will do about it.
  local function read(name, found)
    local number, first, last, busy, turn, tag, rate_ms, wait_ms = stored.unpack(found)
    if not number then number, first, last, busy, turn, tag, rate_ms, wait_ms = -1, 0, -1, 0, 0, 0, 0, 0 end
    if number < 0 then number = nil end
    local one = {
      number = number, first = first, last = last, busy = busy, tag = tag, known = found and true, stale = false, dirty = false,
    }
    setmetatable(one, ZEROS)
    if turn ~= 0 then one.turn = turn end
    if rate_ms ~= 0 then one.rate_ms = rate_ms end
    if wait_ms ~= 0 then one.wait_ms = wait_ms end
    if find(name, '/', 1, true) then one.parent = it.parent_of(name) end
    records[name] = one
    return one
  end

  function it.record(name)
    return records[name] or read(name, redis.call('HGET', states, ':' .. name))
  end

  function it.read_many(names)
    local fields, wanted = {}, {}
    for _, name in ipairs(names) do
      if not records[name] then
        fields[#fields + 1], wanted[#wanted + 1] = ':' .. name, name
      end
    end
    for first = 1, #wanted, AT_ONCE do
      local last = math.min(first + AT_ONCE - 1, #wanted)
      local found = redis.call('HMGET', states, unpack(fields, first, last))
      for i = first, last do read(wanted[i], found[i - first + 1]) end
    end
  end

  -- `one` may be left out: its record.
  function it.write(name, one)
    one = one or it.record(name)
    if not together then return it.write_records({ name }) end
    if not one.dirty then
      one.dirty = true
      local names = together.dirty
      names[#names + 1] = name
    end
  end

  function it.refresh(name)
    if not together then
      it.begin()
      it.refresh(name)
      it.finish()
    elseif not it.record(name).stale then
      records[name].stale = true
      table.insert(together.stale, name)
    end
  end

  -- One may be inside another: the outermost writes.
  function it.begin()
    if not together then together = { depth = 0, dirty = {}, stale = {} } end
    together.depth = together.depth + 1
  end

  function it.finish()
    together.depth = together.depth - 1
    if together.depth > 0 then return end
    it.refresh_all(together.stale)
    local done = together
    together = nil
    it.write_records(done.dirty)
  end

  -- A refusal if a key of groups holds another type, else nil.
  function it.broken()
    return broken({ states, 'hash', turns, 'zset', children, 'zset', later, 'zset', slots, 'hash', limits, 'hash' })
  end

  -- The queue has groups from now on.
  function it.mark()
    redis.call('HSET', meta, 'groups', '1')
    redis.call('HSETNX', meta, 'journal', 'off')
  end

  it.states, it.turns, it.children, it.later, it.slots, it.limits = states, turns, children, later, slots, limits
  it.records, it.read, it.stored = records, read, stored
  for _, extend in ipairs(more_of_groups) do extend(it) end
  made = it
  return it
end
end
-- Writes of many values, and of the records of groups. See lib/groups.lua.
more_of_groups[#more_of_groups + 1] = function(it)
  local states, later, records, pack = it.states, it.later, it.records, it.stored.pack
  local AT_ONCE = 1000 -- values of one command
  -- Written out: the rights of a user are read from this text.
  local COMMANDS = {
    ZADD = function(key, ...) return redis.call('ZADD', key, ...) end,
    ZREM = function(key, ...) return redis.call('ZREM', key, ...) end,
    HSET = function(key, ...) return redis.call('HSET', key, ...) end,
    HDEL = function(key, ...) return redis.call('HDEL', key, ...) end,
  }
  -- One of these with any number of values; returns the sum of its replies.
  function it.in_parts(command, key, values, option)
    local sum, call = 0, COMMANDS[command]
    for first = 1, #values, AT_ONCE do
      local last = math.min(first + AT_ONCE - 1, #values)
      sum = sum + (option and call(key, option, unpack(values, first, last)) or call(key, unpack(values, first, last)))
    end
    return sum
  end

  -- Write records. A group without members, slots or a wait is forgotten.
  function it.write_records(names)
    local set, gone, ends = {}, {}, {}
    for i = 1, #names do
      local name = names[i]
      local one = records[name]
      one.dirty = false
      local empty = not one.number and one.busy == 0 and one.turn == 0
      if empty and one.rate_ms == 0 and one.wait_ms == 0 then
        if one.known then gone[#gone + 1] = ':' .. name end
        one.known = false
      else
        if empty then
          -- Only its rate or its wait is left: it is forgotten after that.
          ends[#ends + 1], ends[#ends + 2] = math.ceil(math.max(one.rate_ms, one.wait_ms)), name
        end
        set[#set + 1], set[#set + 2] = ':' .. name,
          pack(one.number or -1, one.first, one.last, one.busy, one.turn, one.tag, one.rate_ms, one.wait_ms)
        one.known = true
      end
    end
    if it.next_start then
      set[#set + 1], set[#set + 2] = '@start', it.next_start
      it.next_start = nil
    end
    it.in_parts('ZADD', later, ends)
    it.in_parts('HSET', states, set)
    it.in_parts('HDEL', states, gone)
  end

  -- Members of groups have ended, `freed` of each of `names`. Groups that need no more than their records are written at once: those
  -- without a parent and without waiting members. Returns the others. (With members, a group that no limit holds any more may
  -- have been full: a change of limits looks at it once, and here.)
  function it.lower_busy(names, freed)
    local fields, asked, rest, set, gone = {}, {}, {}, {}, {}
    for i = 1, #names do
      local name = names[i]
      if records[name] or string.find(name, '/', 1, true) then
        rest[#rest + 1] = name
      else
        fields[#fields + 1], asked[#asked + 1] = ':' .. name, name
      end
    end
    local function lower(field, name, found)
      local number, first, last, busy, turn, tag, rate_ms, wait_ms = it.stored.unpack(found)
      local alone = number and number < 0 -- nothing waits
      busy = alone and (busy > freed[name] and busy - freed[name] or 0)
      local empty = alone and busy == 0 and turn == 0
      if not alone or empty and (rate_ms ~= 0 or wait_ms ~= 0) then
        rest[#rest + 1] = name
      elseif empty then
        gone[#gone + 1] = field
      else
        set[#set + 1], set[#set + 2] = field, pack(number, first, last, busy, turn, tag, rate_ms, wait_ms)
      end
    end
    for from = 1, #fields, AT_ONCE do
      local to = math.min(from + AT_ONCE - 1, #fields)
      local found = redis.call('HMGET', states, unpack(fields, from, to))
      for i = from, to do lower(fields[i], asked[i], found[i - from + 1]) end
    end
    it.in_parts('HSET', states, set)
    it.in_parts('HDEL', states, gone)
    return rest
  end
end
-- The slots of a batch share a field of `slots` until some of its messages are settled apart from the others, as the messages
-- share one of the lease:   <lease> → the groups of its messages as a MessagePack array, index 1 the first, false for none
-- After that, and for a message that was delivered alone:   <lease>:<index> → group
local packed_slots = {}
do
local MAX_FIELDS = 500 -- of one command

-- Whether no group in the field of a batch is counted.
function packed_slots.are_uncounted(found) return string.byte(found) == 1 end

-- Whether some group may not be counted: its \1 is behind the length of the array, which may have one itself.
function packed_slots.may_be_uncounted(found)
  return packed_slots.are_uncounted(found) or string.find(found, '\1', 3, true) ~= nil
end

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

-- Take the mark from slots that are not counted, `most` at most, of {token, value, …} as they stand in `slots`. Returns the
-- names of their groups, how many slots each has, and the number of all.
function packed_slots.unmark(slots, flat, most)
  local names, numbers, written, left = {}, {}, {}, most
  local function bare(slot)
    if left == 0 or not slot or string.byte(slot) ~= 1 then return slot end
    local name = string.sub(slot, 2)
    if not numbers[name] then names[#names + 1] = name end
    numbers[name], left = (numbers[name] or 0) + 1, left - 1
    return name
  end
  for i = 1, #flat, 2 do
    local token, value, before = flat[i], flat[i + 1], left
    if string.find(token, ':', 1, true) then
      value = bare(value)
    elseif left > 0 and packed_slots.may_be_uncounted(value) then
      local batch = packed_slots.unpacked(value) or {}
      for index, slot in ipairs(batch) do batch[index] = bare(slot) end
      value = cmsgpack.pack(batch)
    end
    if left < before then written[#written + 1], written[#written + 2] = token, value end
  end
  for first = 1, #written, MAX_FIELDS do
    redis.call('HSET', slots, unpack(written, first, math.min(first + MAX_FIELDS - 1, #written)))
  end
  return names, numbers, most - left
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
-- The slots of groups: those of members in flight, and those that members keep while they wait. See lib/groups.lua.
more_of_groups[#more_of_groups + 1] = function(it)
  local UNCOUNTED, ALONE, ORDERED = 1, 2, 61 -- =
  local MAX_WRITES = 8 -- of the field that the slots of a batch share, until each gets a field of its own
  local states, slots, in_parts = it.states, it.slots, it.in_parts

  local byte = string.byte -- called for every member

  local function id_of(item) return string.match(item, '^q1 (%S+)') end
  it.id_of = id_of

  -- Let the records of groups count slots that they did not, `most` at most, of {token, value, …} as they stand in `slots`.
  -- Returns how many they were.
  function it.count_slots(flat, most)
    local names, numbers, all = packed_slots.unmark(slots, flat, most)
    it.read_many(names)
    for _, name in ipairs(names) do it.record(name).busy = it.record(name).busy + numbers[name] end
    it.write_records(names)
    return all
  end

  -- Whether calls are counting what is in flight, see count_page. They may not meet a slot that goes to another field: what
  -- moves it counts it.
  local counting
  local function is_counting()
    if counting == nil then counting = string.find(redis.call('HGET', states, '@looking') or '', '^c') ~= nil end
    return counting
  end

  -- Give each slot of a batch a field of its own.
  function it.loosen(lease_id)
    local stored = redis.call('HGET', slots, lease_id)
    if not stored then return end
    if packed_slots.may_be_uncounted(stored) and is_counting() then it.count_slots({ lease_id, stored }, #stored) end
    packed_slots.loosen(slots, lease_id)
  end

  -- A message moves to another lease, and its slot with it.
  function it.move_slot(old_id, new_id, index)
    it.loosen(old_id)
    local token = old_id .. ':' .. index
    local name = redis.call('HGET', slots, token)
    if not name then return end
    if byte(name) == UNCOUNTED and is_counting() then
      it.count_slots({ token, name }, 1)
      name = it.name_of(name)
    end
    redis.call('HSET', slots, new_id .. ':' .. index, name)
    redis.call('HDEL', slots, token)
  end

  -- A slot of the group is taken, for `token`. `alone`: not one of its parent.
  function it.occupy(token, name, alone)
    local parent = it.parent_of(name)
    if redis.call('HSET', slots, token, alone and parent and '\2' .. name or name) == 0 then return end
    it.record(name).busy = it.record(name).busy + 1
    if parent and not alone then it.record(parent).busy = it.record(parent).busy + 1 end
    it.refresh(name)
  end

  -- Free a slot; false if nothing had it.
  function it.vacate(token)
    local lease_id = string.match(token, '^([^:]+):')
    if lease_id then it.loosen(lease_id) end
    local name = redis.call('HGET', slots, token)
    if not name then return false end
    redis.call('HDEL', slots, token)
    if byte(name) == UNCOUNTED then return true end
    local parent = byte(name) ~= ALONE and it.parent_of(name)
    name = it.name_of(name)
    if not lease_id and byte(name) == ORDERED then it.record(name).wait_ms = 0 end -- see keep_ordered_slot
    it.record(name).busy = math.max(0, it.record(name).busy - 1)
    if parent then it.record(parent).busy = math.max(0, it.record(parent).busy - 1) end
    it.refresh(name)
    return true
  end

  -- Members of groups have ended, `freed` of each of `names`: each group is read and written once.
  local function release(names, freed)
    names = it.lower_busy(names, freed)
    it.read_many(names)
    for _, name in ipairs(names) do
      local one = it.record(name)
      one.busy = math.max(0, one.busy - freed[name])
      if one.parent then
        local above = it.record(one.parent)
        above.busy = math.max(0, above.busy - freed[name])
      end
    end
    for _, name in ipairs(names) do
      local one = it.record(name)
      if one.number or one.parent then it.refresh(name) else it.write(name) end
    end
  end

  -- Free the slots of a batch that share a field, all or those of some messages. False, with nothing changed, if they do not
  -- share one, or if it would be written for too few.
  function it.vacate_batch(lease_id, indices)
    local stored = redis.call('HGET', slots, lease_id)
    if stored and not indices and packed_slots.are_uncounted(stored) then
      redis.call('HDEL', slots, lease_id)
      return true
    end
    local found, names, freed, left = stored and packed_slots.unpacked(stored), {}, {}, 0
    if not found or indices and #indices * MAX_WRITES < #found then return false end
    local function free(index)
      local name = found[index]
      if not name then return end
      found[index] = false
      if byte(name) == UNCOUNTED then return end
      if not freed[name] then names[#names + 1] = name end
      freed[name] = (freed[name] or 0) + 1
    end
    if indices then
      for _, index in ipairs(indices) do
        if string.find(index, '^[1-9]%d*$') then free(tonumber(index)) end
      end
      for i = 1, #found do left = found[i] and left + 1 or left end
    else
      for i = 1, #found do free(i) end
    end
    if left > 0 then redis.call('HSET', slots, lease_id, cmsgpack.pack(found)) else redis.call('HDEL', slots, lease_id) end
    if #names > 0 then release(names, freed) end
    return true
  end

  -- Free the slots of many messages of a lease.
  function it.vacate_all(lease_id, indices)
    if #indices == 0 or redis.call('EXISTS', slots) == 0 or it.vacate_batch(lease_id, indices) then return end
    it.loosen(lease_id)
    local AT_ONCE, names, freed, seen = 1000, {}, {}, {}
    for first = 1, #indices, AT_ONCE do
      local tokens, gone = {}, {}
      for i = first, math.min(first + AT_ONCE - 1, #indices) do tokens[#tokens + 1] = lease_id .. ':' .. indices[i] end
      for i, name in ipairs(redis.call('HMGET', slots, unpack(tokens))) do
        if name and not seen[tokens[i]] then
          seen[tokens[i]] = true -- an index may be named twice
          gone[#gone + 1] = tokens[i]
          if byte(name) ~= UNCOUNTED then
            if not freed[name] then names[#names + 1] = name end
            freed[name] = (freed[name] or 0) + 1
          end
        end
      end
      in_parts('HDEL', slots, gone)
    end
    release(names, freed)
  end

  -- Free the slots of the entries of a lease, as `read_lease` returns them.
  function it.vacate_entries(lease_id, entries)
    local indices = {}
    for i, entry in ipairs(entries) do indices[i] = entry[3] end
    it.vacate_all(lease_id, indices)
  end

  -- Items of a new lease, which did not wait in their groups, take a slot each, and a turn.
  function it.occupy_all(lease_id, items, now)
    for i, item in ipairs(items) do
      local name = group_of(item)
      if name then
        it.charge(name, now)
        it.occupy(lease_id .. ':' .. (#items == 1 and '0' or i), name)
        it.vacate(':' .. id_of(item))
      end
    end
  end

  -- How many members of each group are in flight and not counted, a page of about `most` slots a call; and the next cursor.
  function it.running_uncounted(cursor, most)
    local running = {}
    local next_cursor = packed_slots.each(slots, cursor, most, function(slot)
      if byte(slot) ~= UNCOUNTED then return end
      local name = it.name_of(slot)
      running[name] = (running[name] or 0) + 1
    end)
    return running, next_cursor
  end

  function it.name_of(slot) return string.find(slot, '^[\1\2]') and string.sub(slot, 2) or slot end

  -- An ordered group waits for a message that comes back at a time. Nothing of it runs until then: `wait_ms` tells people.
  function it.keep_ordered_slot(item, due_ms)
    local name = group_of(item)
    if not name or byte(name) ~= ORDERED then return end
    it.record(name).wait_ms = due_ms < MAX_MS and due_ms or 0
    it.occupy(':' .. id_of(item), name, true)
  end

  -- A waiting member keeps its slot: what comes after it must not run beside it.
  function it.keep_slot(item)
    local name = group_of(item)
    if name then it.occupy(':' .. id_of(item), name) end
  end

  -- A waiting message has ended, and a slot that it kept is free.
  function it.free_slot(item)
    if group_of(item) then it.vacate(':' .. id_of(item)) end
  end
end
-- A message moves to another lease, and the slot of its group with it.
local function move_slot(item, old_id, new_id, index)
  if kind(item) == 'own' and has_flags(item) and flag(item, ' g=') then groups().move_slot(old_id, new_id, index) end
end

local refused = broken({ unacked, 'zset', meta, 'hash', old, 'hash', new, 'hash' })
if refused then return refused end
local now, own = clock(ARGV[1], meta), ARGV[3] == ''
local visibility_ms = own and DEFAULT_VISIBILITY_MS or whole(ARGV[3], 0, MAX_VISIBILITY_MS)
local old_id, new_id = string.match(old, '}:lease:([%w._-]+)$'), string.match(new, '}:lease:([%w._-]+)$')
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
move_slot(item, old_id, new_id, ARGV[2])
if redis.call('EXISTS', old) == 0 then redis.call('ZREM', unacked, old_id) end
return { 'OK', text(now), deadline }
