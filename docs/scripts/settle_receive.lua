#!lua flags=allow-oom
-- settle_receive.lua: settle received messages and receive the next batch, in one round trip.
-- ROLES      consumer, operator
-- KEYS       see lib/keys.lua; leases: those settled, and last the new one
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    resume           1: the call was made before with this new lease and its reply was lost:
--                             settle again, return what the lease holds, never create it; else 0, or '' or
--                             `each` for a caller that knows the short reply: the messages get a field of their
--                             own in the lease with `each`, as they will be settled one by one
-- ARGV[3]    count            0-1000; 0 settles only; a queue with groups gives 500 at most
-- ARGV[4]    visibility ms    1-43200000 (12 h), '' for the queue's
-- ARGV[5]    suspects         0 never · 1 if nothing else is ready · 2 first
-- ARGV[6]    caller           makes the call, for the journal: `<host>:<pid>` or ''
-- ARGV[7]…   outcomes         see lib/outcomes.lua
-- Returns {'OK', now ms, deadline ms, ready left, hint ms, suspect 1 or 0, degraded, {settled per lease}, {items}, {indices},
--   suspects waiting, journal 1 or 0, and of a queue with groups the ms until one may run, or 0}; indices is empty unless
--   resumed, and means '0' for one item, '1' … 'n' for several; or the short reply {'SHORT', now ms, deadline ms, ready left,
--   hint ms, degraded, settled per lease with spaces between, '' for 1 each, items …}, where the rest is 0 or empty; with
--   'NOTED' in place of 'SHORT', the journal is 1, and with 'TURNS' the queue has groups;
--   or a refusal: {'LEASEUSED', id} {'BROKEN', key, type} {'ARG', name}. hint ms: see lib/receive.lua.
-- O(s + n): s outcomes, n messages received.
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
-- The stream of the journal: writes recorded events as entries, numbered and capped in bytes. It uses nothing of other files,
-- as the short ways (see lib/lone_journal.lua) come first in their scripts.

-- Write the events of `book`: `events` of them, those that are not shed in `entries`, each with its `number` and `groups`. It
-- also has `now`, the keys `journal`, `meta` and `stats`, and the journal's `epoch` and `cap` if they are known. The change
-- itself is done by then, so this must not fail the call: returns 1 (degraded) if the journal could not be written, else 0.
local function write_entries(book, caller)
  local ENTRY_BYTES, TRIM_EVERY, MAX_EXACT = 64, 16, 9007199254740992 -- an entry's own size without its groups, approximately
  local journal, meta, stats = book.journal, book.meta, book.stats

  local function counter(value)
    local number = tonumber(value)
    return number and number >= 0 and number <= MAX_EXACT and number % 1 == 0 and number or nil
  end

  local function digits(number) return string.format('%.0f', number) end

  -- The bytes before the first entry from `id` on, its epoch and its number; nil without such an entry.
  local function entry_from(id)
    local entry = redis.call('XRANGE', journal, id, '+', 'COUNT', 1)[1]
    if not entry then return nil end
    local epoch, number = string.match(entry[1], '^(%d+)%-(%d+)$')
    return counter(entry[2][6]), tonumber(epoch), tonumber(number), entry[1]
  end

  -- Begin a new epoch, later than all in the stream: the counters are new or were lost. Its last bits are drawn from what
  -- is written (message ids are random): a journal that was removed or rolled back never has the same epoch again, whatever
  -- the clock says. Where all events are shed there is no text to draw from but who made the call. The count of bytes
  -- continues from the stream's.
  local function begin_epoch(counted)
    local EPOCHS_PER_MS = 1024 -- epochs stay below 2^53 until the year 2248
    local last, last_epoch, written = redis.call('XREVRANGE', journal, '+', '-', 'COUNT', 1)[1], 0, 0
    if last then
      last_epoch = tonumber(string.match(last[1], '^%d+'))
      written = (counter(last[2][6]) or 0) + #(last[2][12] or '') + ENTRY_BYTES
    end
    local entry = book.entries[1]
    local drawn = redis.sha1hex(journal .. caller .. (entry and entry.groups or ''))
    local fresh = book.now * EPOCHS_PER_MS + tonumber(string.sub(drawn, 1, 8), 16) % EPOCHS_PER_MS
    book.epoch = math.max(fresh, (book.epoch or 0) + 1, last_epoch + 1)
    redis.call('HSET', meta, 'journal_epoch', digits(book.epoch))
    counted.entries, counted.events, counted.written = 0, 0, written
  end

  local function add_entry(counted, entry)
    local id = digits(book.epoch) .. '-' .. digits(counted.entries)
    local reply = redis.pcall('XADD', journal, id, 'n', counted.events, 'k', entry.number, 'b', counted.written, 't', book.now,
      'w', caller, 'e1', entry.groups)
    if type(reply) == 'table' then return false end
    counted.entries, counted.events = counted.entries + 1, counted.events + entry.number
    counted.written = counted.written + #entry.groups + ENTRY_BYTES
    return true
  end

  -- Drop the oldest entries until the rest fits the cap; if there are many, only a part of them per call.
  local function trim_journal(counted)
    local TRIM_AT_ONCE, OLD_AT_ONCE = 1000, 32
    local enough = counted.written - book.cap -- at least so many bytes stand before the first entry to keep
    if enough <= 0 then return end
    local before, epoch, low, id = entry_from('-')
    for _ = 1, OLD_AT_ONCE do
      if not id or before and before >= enough then return end
      if before and epoch == book.epoch then break end
      redis.call('XDEL', journal, id)
      before, epoch, low, id = entry_from('-')
    end
    if epoch ~= book.epoch then return end
    local high, prefix = math.min(low + TRIM_AT_ONCE, counted.entries), digits(book.epoch) .. '-'
    while low < high do
      local middle = math.floor((low + high) / 2)
      if (entry_from(prefix .. digits(middle)) or counted.written) >= enough then high = middle else low = middle + 1 end
    end
    redis.call('XTRIM', journal, 'MINID', prefix .. digits(high))
  end

  local function write()
    local found = redis.call('HMGET', stats, 'journal_entries', 'journal_events', 'journal_written')
    local counted = { entries = counter(found[1]), events = counter(found[2]), written = counter(found[3]) }
    if not (book.epoch and counted.entries and counted.events and counted.written) then begin_epoch(counted) end
    local first, left, degraded = counted.entries, book.events, 0
    for _, entry in ipairs(book.entries) do
      if not add_entry(counted, entry) then
        begin_epoch(counted)
        first = 0
        if not add_entry(counted, entry) then degraded = 1 break end
      end
      left = left - entry.number
    end
    -- Events that were shed or could not be written are counted as well.
    redis.call('HSET', stats, 'journal_entries', counted.entries, 'journal_events', counted.events + left,
      'journal_written', counted.written)
    if math.floor(first / TRIM_EVERY) ~= math.floor(counted.entries / TRIM_EVERY) then trim_journal(counted) end
    return degraded
  end

  caller = string.sub(caller or '', 1, 128)
  local done, degraded = pcall(write)
  return done and degraded or 1
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
-- What the usual receive from a queue with groups makes of their records, see lib/even_turns.lua.

-- Fill `turn` from the records of those in line. Nil if one needs a closer look; raises an error if one is malformed. Most
-- groups of a call differ by their numbers alone, and those that are new have one message: `lone` is what the record of
-- such a one has after its number. `line`: names and the texts of their virtual times; nil if all have that of `score`.
local function even_records(pack, turn, queue, count, records, score, line, any_ordered)
  local SEATS_FROM, SEATS, ORDERED = 4503599627370496, 2147483648, 61
  local byte, sub, unpack_limit = string.byte, string.sub, cmsgpack.unpack_limit -- globals are looked up at each use
  -- How many bytes of a record come before its first seat: its mark and its number, by the first byte of that.
  local BEFORE = { [0xcc] = 3, [0xcd] = 4, [0xce] = 6 }

  -- The number of a group if its record ends with `rest` and has nothing else; false otherwise.
  local function number_before(rest, found)
    local mark, number_mark, a, b, c, d = byte(found, 1, 6)
    local before = BEFORE[number_mark]
    if mark ~= 0x98 or sub(found, (before or 2) + 1) ~= rest then return false end
    if before == 4 then return a * 256 + b end
    if before == 6 then return ((a * 256 + b) * 256 + c) * 256 + d end
    return before and a or number_mark < 0x80 and number_mark
  end

  local names, fields = turn.names, turn.fields
  local seats, last_of, stand, set = {}, {}, {}, {}
  local last_tag, last_name = tonumber(line and line[2 * count] or score), names[count]
  -- What leaves the line, is forgotten, and has run empty. Usually that is all: there are tables from the first other one on.
  local left, gone, emptied = nil, nil, nil
  local function tell_apart(before)
    left, gone, emptied = { unpack(names, 1, before) }, { unpack(fields, 1, before) }, { unpack(names, 1, before) }
  end
  local is_counted, score_text, lone, lone_seat, next_seat, begun, waiting = false, nil, nil, nil, nil, nil, 0
  local rest, old_first, old_last, old_busy, old_tag = nil, nil, nil, nil, nil
  for i = 1, count do
    local name, found = names[i], records[i]
    if line then score = line[2 * i] end
    local number = lone and score == score_text and number_before(lone, found)
    if number then
      local seat = lone_seat + number * SEATS
      seats[i] = seat
      if seat ~= next_seat then begun = i end
      last_of[begun], next_seat = i, seat + SEATS
      if left then left[#left + 1], gone[#gone + 1], emptied[#emptied + 1] = name, fields[i], name end
    else
      local _, number, first, last, busy, turn_number, tag, rate_ms, wait_ms = unpack_limit(found, 8, 1)
      local mark, number_mark = byte(found, 1, 2)
      if mark ~= 0x98 or number < 0 or first > last or turn_number ~= 0 or rate_ms ~= 0 or wait_ms ~= 0 then return nil end
      local is_ordered = any_ordered and byte(name) == ORDERED
      if is_ordered then
        if busy > 0 then return nil end
        busy, is_counted = 1, true
      end
      if score ~= score_text then
        score_text = score
        local from = tonumber(score)
        if from > queue then queue = from end
      end
      tag = (tag > queue and tag or queue) + 1
      if tag < last_tag or tag == last_tag and name < last_name then return nil end -- it would have a second turn
      local seat = SEATS_FROM + number * SEATS + first % SEATS
      seats[i] = seat
      if not left and (first < last or busy > 0) then tell_apart(i - 1) end
      if first < last then
        lone, next_seat = nil, nil
        if tag ~= old_tag or first ~= old_first or last ~= old_last or busy ~= old_busy then
          rest = sub(pack(0, first + 1, last, busy, 0, tag, 0, 0), 3)
          old_first, old_last, old_busy, old_tag = first, last, busy, tag
        end
        set[#set + 1], set[#set + 2] = fields[i], sub(found, 1, BEFORE[number_mark] or 2) .. rest
        if is_ordered then
          left[#left + 1] = name
        else
          stand[#stand + 1], stand[#stand + 2] = tag, name
          waiting = waiting + last - first
        end
      else
        if seat ~= next_seat then begun = i end
        last_of[begun], next_seat, lone = i, seat + SEATS, nil
        if left then left[#left + 1] = name end
        if busy > 0 then
          set[#set + 1], set[#set + 2] = fields[i], pack(-1, 0, -1, busy, 0, tag, 0, 0)
        else
          if left then gone[#gone + 1], emptied[#emptied + 1] = fields[i], name end
          lone = not any_ordered and tag > last_tag and sub(found, (BEFORE[number_mark] or 2) + 1) or nil
          lone_seat = SEATS_FROM + first % SEATS
        end
      end
    end
  end
  turn.seats, turn.last_of, turn.is_counted, turn.queue, turn.waiting = seats, last_of, is_counted, queue, waiting
  turn.stand, turn.set = stand, set
  turn.left, turn.gone, turn.emptied = left or names, gone or fields, emptied or names
  return turn
end
-- The usual receive from a queue with groups: nothing limits them but the order of those that are ordered, and each of those
-- that are next gives one message. Nothing stands in line twice, so there is no line to keep, and no group needs a table. The
-- short way of a receive takes it before the functions of the long way are created; everything else goes the way of
-- lib/turns.lua, whose rules are the same.

-- Its functions are made here, as a queue without groups needs none. The keys are those of lib/groups.lua, and `stored` is of
-- lib/group_records.lua.
local function even_turns(states, turns, slots, stored)
  local ORDERED = 61 -- =
  local FEW = 4 -- messages that are not removed as a range
  local SHORT = 4096 -- bytes of a message that is searched whole: to cut off its header takes longer
  local redis, byte, find, sub = redis, string.byte, string.find, string.sub -- globals are looked up at each use
  local delayed = KEYS[12]
  local it = {}

  -- What a turn of each of the first `count` in line does: their names, the seats of their messages, the last of those
  -- whose seats follow those before, by the first, and what is to be written. Nil if it needs a closer look.
  local function read_turns(queue, count)
    local names, fields, line = redis.call('ZRANGE', turns, 0, count - 1), {}, nil
    if #names < count then return nil end
    for i = 1, count do fields[i] = ':' .. names[i] end
    local all = table.concat(fields, '\n')
    if find(all, '/', 1, true) then return nil end
    local any_ordered = byte(all, 2) == ORDERED or find(all, '\n:=', 1, true) ~= nil
    -- Most have the same virtual time: to make a text of each takes longer than to ask for two.
    local score = redis.call('ZSCORE', turns, names[1])
    if count > 1 and redis.call('ZSCORE', turns, names[count]) ~= score then
      line = redis.call('ZRANGE', turns, 0, count - 1, 'WITHSCORES')
    end
    local records, turn = redis.call('HMGET', states, unpack(fields)), { names = names, fields = fields }
    local sound, read = pcall(even_records, stored.pack, turn, queue, count, records, score, line, any_ordered)
    return sound and read or nil
  end

  -- The message at position `at`, and those whose seats follow it with nothing between them, `most` at most. None if the seats
  -- are not as the records say.
  local function read_messages(at, most, seats, last_of)
    local last = last_of[at] or at
    if last - at >= most then
      last_of[at + most] = last
      last = at + most - 1
    end
    local items = redis.call('ZRANGE', delayed, seats[at], seats[last], 'BYSCORE')
    return #items == last - at + 1 and items or {}
  end

  -- The bytes of messages if none of them expires or has a unique key, found in one search where they are short; or else nil.
  local function bytes_of_usual(items)
    if #items[1] * #items > 65536 then return nil end
    local all = table.concat(items)
    return not find(all, ' x=', 1, true) and not find(all, ' u=', 1, true) and #all or nil
  end

  -- Read the next messages: `count` of them, 500 at most, or one of each of the `standing` groups in line if they are fewer,
  -- in at most `most_bytes`. `may_take(item)` is asked about those that may expire or have a unique key. Returns the turn: its
  -- `items` and their `bytes`, which of them are `flagged`, and how many messages are `waiting` in groups that stay in line.
  -- Nil if it needs the other way.
  function it.read(queue, standing, count, most_bytes, may_take)
    local wanted = math.min(count, standing)
    local turn = wanted > 0 and read_turns(queue, wanted)
    if not turn or standing < count and turn.stand[1] then return nil end
    local seats, last_of, items, flagged, at_once, bytes, number = turn.seats, turn.last_of, {}, {}, {}, 0, 0
    while number < wanted do
      local most = number == 0 and 1 or math.max(1, math.min(33, math.ceil((most_bytes - bytes) * number / math.max(bytes, 1))))
      local some = read_messages(number + 1, most, seats, last_of)
      if #some == 0 then return nil end
      at_once[#at_once + 1] = #some
      local usual = #some >= FEW and bytes_of_usual(some)
      if usual and bytes + usual <= most_bytes then
        bytes = bytes + usual
        for i = 1, #some do items[number + i] = some[i] end
        number = number + #some
      else
        for i = 1, #some do
          local item = some[i]
          bytes = bytes + #item
          if number > 0 and bytes > most_bytes then return it.read(queue, standing, number, most_bytes, may_take) end
          number = number + 1
          items[number] = item
          local searched = #item < SHORT and item or sub(item, 1, find(item, '\n', 1, true) or 0)
          if find(searched, ' x=', 1, true) or find(searched, ' u=', 1, true) then
            if not may_take(item) then return nil end
            flagged[#flagged + 1] = item
          end
        end
      end
    end
    turn.items, turn.bytes, turn.flagged, turn.at_once, turn.standing = items, bytes, flagged, at_once, standing
    return turn
  end

  -- How many messages may run after a turn, as `running` of lib/group_waits.lua counts them. Nil if a parent is among those
  -- in line.
  function it.left(turn)
    local stay = turn.standing - #turn.left
    if stay == 0 or stay > 16 then return stay end
    local number, names = turn.waiting, redis.call('ZRANGE', turns, #turn.names, -1)
    if #names == 0 then return number end
    local fields = {}
    for i = 1, #names do
      if find(names[i], '/', 1, true) then return nil end
      fields[i] = ':' .. names[i]
    end
    for i, found in ipairs(redis.call('HMGET', states, unpack(fields))) do
      local known, first, last = stored.unpack(found)
      number = number + (known and byte(names[i]) ~= ORDERED and math.max(1, last - first + 1) or 1)
    end
    return number
  end

  -- Remove the messages that were taken; several that one command has read as a range, without their bodies: there is nothing
  -- else in it. Earlier rules of a user do not allow that.
  local function remove(turn)
    local seats, items, others, at = turn.seats, turn.items, {}, 1
    local may = redis.acl_check_cmd('ZREMRANGEBYSCORE', delayed, 0, 0)
    for _, number in ipairs(turn.at_once) do
      local last = at + number - 1
      if may and number >= FEW then
        redis.call('ZREMRANGEBYSCORE', delayed, seats[at], seats[last])
      else
        for i = at, last do others[#others + 1] = items[i] end
      end
      at = last + 1
    end
    if #others > 0 then redis.call('ZREM', delayed, unpack(others)) end
  end

  -- Those that have left the line are often the first that stand there: then these are removed as a range.
  local function leave(turn)
    local left, names = turn.left, turn.names
    for i = 1, left ~= names and #left or 0 do
      if left[i] ~= names[i] then return redis.call('ZREM', turns, unpack(left)) end
    end
    if #left > 0 then redis.call('ZREMRANGEBYRANK', turns, 0, #left - 1) end
  end

  -- Write a turn whose messages are in the lease, and the virtual times.
  function it.write(turn, lease_id, tags)
    local names, one_by_one = turn.names, turn.is_counted or #turn.names == 1
    local held = one_by_one and {} or names
    for i = 1, one_by_one and #names or 0 do held[i] = byte(names[i]) ~= ORDERED and '\1' .. names[i] or names[i] end
    stored.hold(slots, lease_id, held, one_by_one and '' or '\1')
    remove(turn)
    leave(turn)
    if #turn.set > 0 then redis.call('HSET', states, unpack(turn.set)) end
    if #turn.gone > 0 then redis.call('HDEL', states, unpack(turn.gone)) end
    if #turn.stand > 0 then redis.call('ZADD', turns, unpack(turn.stand)) end
    tags.queue, tags.plain = turn.queue, 0
    if #turn.emptied > 0 then stored.note_recent(tags, turn.emptied) end
    stored.write_tags(tags)
  end
  return it
end
-- Which of some items were cancelled: a single tombstone makes every receive look.

-- Position → true, of the items that have a tombstone, and maybe of others that begin like one; nil if none has. `cancelled` is
-- the key of the tombstones.
local function marked_in(items, cancelled)
  local SEVERAL, FEW, FEW_LENGTHS = 8, 128, 4
  local marked, sub = {}, string.sub -- globals are looked up at each use

  -- Tombstones, if they are so few that several items are looked up faster here: id → true, and the lengths of ids. Else nil.
  local function read()
    if #items < SEVERAL or redis.call('ZCARD', cancelled) > FEW then return nil end
    local tombstones, lengths, seen = {}, {}, {}
    for _, id in ipairs(redis.call('ZRANGE', cancelled, 0, -1)) do
      tombstones[id] = true
      if not seen[#id] then seen[#id], lengths[#lengths + 1] = true, #id end
    end
    if #lengths <= FEW_LENGTHS then return tombstones, lengths end
  end

  local tombstones, lengths = read()
  for _, length in ipairs(lengths or {}) do
    local last, after = 3 + length, 4 + length
    for i = 1, #items do
      local item = items[i]
      if tombstones[sub(item, 4, last)] and sub(item, after, after) == ' ' then marked[i] = true end
    end
  end
  if not tombstones then
    local ids = {}
    for i = 1, #items do ids[i] = string.match(items[i], '^q%d+ ([^ ]+)') or '' end
    for i, score in ipairs(ids[1] and redis.call('ZMSCORE', cancelled, unpack(ids)) or ids) do
      if score then marked[i] = true end
    end
  end
  return next(marked) and marked
end
do
-- What a short way writes to a journal: the same events as lib/journal.lua records, in the same groups, if no message needs to
-- be read for that.

-- Complete a `book` that has the keys `journal`, `meta` and `stats`. Returns nil for a journal that the long way begins, or
-- that is shed or of another type. Its functions are made here, as a queue without a journal needs none.
local function short_journal(book)
  local MAX_GROUPS, GROUP, ROWS_AT_ONCE, DEFAULT_CAP, MIN_CAP = 16384, '\n\n', 250, 67108864, 1048576
  local meta, journal = book.meta, book.journal
  local found = redis.call('HMGET', meta, 'journal_epoch', 'journal_cap', 'journal_shed')
  local epoch, cap = tonumber(found[1] or 0), tonumber(found[2] or DEFAULT_CAP)
  if found[3] or not epoch or epoch < 1 or epoch % 1 ~= 0 or not cap or cap < MIN_CAP or cap % 1 ~= 0 then
    return nil
  end
  local its_type = redis.call('TYPE', journal).ok
  if its_type ~= 'stream' and its_type ~= 'none' then return nil end
  book.epoch, book.cap, book.events, book.entries = epoch, cap, 0, {}
  local groups, number, bytes = {}, 0, 0

  local function close_entry()
    if number == 0 then return end
    book.entries[#book.entries + 1] = { number = number, groups = groups[2] and table.concat(groups, GROUP) or groups[1] }
    groups, number, bytes = {}, 0, 0
  end

  local function add(group, events)
    if bytes + #group > MAX_GROUPS then close_entry() end
    groups[#groups + 1] = group
    number, bytes, book.events = number + events, bytes + #group + #GROUP, book.events + events
  end

  -- The groups, {text, number of events, …}, of an event of many messages, by their headers; nil if one is too large. Changes
  -- `heads`, as lib/journal.lua does.
  function book.rows(first, heads)
    local rows = {}
    for from = 1, #heads, ROWS_AT_ONCE do
      local to = math.min(from + ROWS_AT_ONCE - 1, #heads)
      heads[from - 1] = first
      local group = table.concat(heads, '\n', from - 1, to)
      if #group > MAX_GROUPS then return nil end
      rows[#rows + 1], rows[#rows + 2] = group, to - from + 1
    end
    return rows
  end

  -- The caller's groups of a lease of which so many acks counted: as they are if all did. See `record_told` of lib/settle.lua.
  function book.acked(told, acked)
    if acked == told.number then
      for i = 1, #told, 2 do add(told[i], told[i + 1]) end
    elseif acked > 0 then
      add(string.format('unsure - - - %d_of_%d -', acked, told.number) .. '\nq1 - ' .. book.stamp .. ' 0 0 0 0', 1)
    end
  end

  -- Write the events, and after them `rows`; returns 1 if that failed, else 0.
  function book.write(rows, caller)
    for i = 1, #rows, 2 do add(rows[i], rows[i + 1]) end
    close_entry()
    return book.events > 0 and write_entries(book, caller) or 0
  end
  return book
end
-- The short way to ack messages. It runs before the functions of the long way are created, and checks only the keys that it
-- writes. Every other call takes the long way; nothing is written by then.

local LEASE_ID = '}:lease:([%w._-]+)$'

-- Whether ARGV, from `at` on (see lib/outcomes.lua), acks index 0 of each lease and has no other outcome, and no journal
-- groups.
local function acks_alone(at, leases)
  if leases == 0 then return ARGV[at] == '0' and #ARGV == at end
  local all = leases == 1 and '1 1 0 0 0 0' or leases .. string.rep(' 1 0 0 0 0', leases)
  return #ARGV == at + 5 * leases and table.concat(ARGV, ' ', at) == all
end

-- The ids of the leases if all of these acks count: a lease has field 0 and no other, and is named once. Else nil.
local function held_alone(leases)
  local ids = {}
  for i = 1, leases do
    local key = KEYS[20 + i]
    local fields, id = redis.pcall('HKEYS', key), string.match(key, LEASE_ID)
    if fields[1] ~= '0' or fields[2] or not id or ids[key] then return nil end
    ids[i] = id
    if leases > 1 then ids[key] = true end
  end
  return ids
end

-- The numbers in a reply of HMGET, 0 for a missing one; nil if one is not a whole number.
local function counters(found)
  local a, b, c, d = tonumber(found[1] or 0), tonumber(found[2] or 0), tonumber(found[3] or 0), tonumber(found[4] or 0)
  if found.err or not a or not b or not c or not d or (a + b + c + d) % 1 ~= 0 then return nil end
  return a, b, c, d
end

-- Acks of messages that were delivered together, from `at` on in ARGV: nil for anything but acks by index or `*`. Else
-- functions: `held` reads, `take` writes; and `told`, the journal groups per lease: {text, number of events, …}, and the
-- `number` of events of all.
local function acks_by_index(at, leases)
  local first, number, acks = {}, {}, { told = {} }
  if ARGV[at] ~= tostring(leases) then return nil end
  local function told_at(place)
    local groups, told = tonumber(ARGV[place]), { number = 0 }
    local last = place + 2 * (groups or 0)
    if not groups or groups < 1 or groups > 10000 or groups % 1 ~= 0 or #ARGV < last then return nil end
    for i = place + 1, last, 2 do
      local events, group = tonumber(ARGV[i]), ARGV[i + 1]
      if not events or events < 1 or events > 10000 or events % 1 ~= 0 or #group > 16384 then return nil end
      told[#told + 1], told[#told + 2], told.number = group, events, told.number + events
    end
    return told, last
  end
  for l = 1, leases do
    local n = tonumber(ARGV[at + 1])
    if ARGV[at + 1] ~= '*' and (not n or n < 1 or n > 1000 or n % 1 ~= 0) then return nil end
    first[l], number[l], at = at + 2, n, at + (n or 0) + 4
    if ARGV[at - 2] ~= '0' or ARGV[at - 1] ~= '0' then return nil end
    if ARGV[at] ~= '0' then
      acks.told[l], at = told_at(at)
      if not at then return nil end
    end
  end
  if #ARGV ~= at then return nil end

  -- The ids of the leases. Nil if one is named twice, or has messages in one field that are not all acked, which the long way
  -- takes apart.
  local whole_ones = {}
  function acks.held()
    local ids = {}
    for l = 1, leases do
      local key = KEYS[20 + l]
      local batch, id = redis.pcall('HGET', key, 'batch'), string.match(key, LEASE_ID)
      if not id or ids[key] or type(batch) == 'table' then return nil end
      ids[l] = id
      if leases > 1 then ids[key] = true end
      if batch then
        local head, high, low = string.byte(batch, 1, 3)
        local all, seen = head == 0xdc and low and high * 256 + low or head and head < 0xa0 and head - 0x90 or 0, {}
        if all < 1 or number[l] and all ~= number[l] then return nil end
        for i = first[l], first[l] + (number[l] or 0) - 1 do
          local index = tonumber(ARGV[i])
          if not index or index < 1 or index > all or index % 1 ~= 0 or seen[index] then return nil end
          seen[index] = true
        end
        whole_ones[l] = all
      elseif not number[l] then
        whole_ones[l] = redis.call('HLEN', key)
      end
    end
    return ids
  end

  -- Whether all of a lease is acked.
  function acks.is_whole(l) return whole_ones[l] ~= nil end

  -- How many messages are acked by their indices.
  function acks.named()
    local all = 0
    for l = 1, leases do all = all + (number[l] or 0) end
    return all
  end

  -- Take the messages out of their leases. Returns how many there were, how many of each lease, and the leases that are over.
  function acks.take(ids, stats)
    local done, settled, over = 0, {}, {}
    local asked = 0
    for l = 1, leases do
      local key, n = KEYS[20 + l], number[l] or whole_ones[l]
      if whole_ones[l] then
        settled[l] = redis.call('DEL', key) * n
        over[#over + 1] = ids[l]
      else
        settled[l] = redis.call('HDEL', key, unpack(ARGV, first[l], first[l] + n - 1))
        if redis.call('EXISTS', key) == 0 then over[#over + 1] = ids[l] end
      end
      done, asked = done + settled[l], asked + n
    end
    if asked > done then redis.pcall('HINCRBY', stats, 'stale', asked - done) end
    return done, settled, over
  end
  return acks
end

-- The fields in `slots` of the messages of leases, see lib/packed_slots.lua. Nil if `acks` is not of all of one, or if one has
-- no slots, or some that the records of groups count.
local function uncounted(slots, ids, acks)
  local asked, fields = {}, {}
  for i = 1, #ids do
    if acks and not acks.is_whole(i) then return nil end
    asked[2 * i - 1], asked[2 * i] = ids[i], ids[i] .. ':0'
  end
  if #ids == 0 then return fields end
  local found = redis.pcall('HMGET', slots, unpack(asked))
  for i = 1, #asked, 2 do
    local at = found[i] and i or i + 1
    if string.byte(found[at] or '') ~= 1 then return nil end
    fields[#fields + 1] = asked[at]
  end
  return fields
end
-- What the short way receives, and how it is delivered, see lib/lone_receive.lua.

local MAX_BYTES = 1048576 -- a batch ends at its count or at this size

-- The end of an item's header if nothing keeps it from being delivered: of our format, and without a flag that says until
-- when, who waits, or which group it is in. Else nil. A pattern takes twice the time of these, which runs for every item.
local find, sub = string.find, string.sub
local MANY = 4096 -- bytes of a body that is not searched
local function is_plain(item)
  local stop = find(item, '\n', 1, true)
  if not stop or sub(item, 1, 3) ~= 'q1 ' then return nil end
  local flag = find(#item < MANY and item or sub(item, 1, stop), '=', 1, true)
  if flag and flag < stop and find(item, '^[^\n]* [xlg]=') then return nil end
  return stop
end

-- The first item, which was read alone as a read copies whole items, and the others up to `wanted`; nil if one is not
-- plain, or they are more than a batch may hold. `lists`: {key, length, …}, the lowest level first and that of `item` last.
-- Also returns how many items are of each list: {key, number, …}. `heads`, where given, gets the headers of the others.
local function with_others(lists, item, wanted, heads)
  local items, taken, bytes, all, number = { item }, {}, #item, 1, 1
  for at = #lists - 1, 1, -2 do
    local key, length = lists[at], math.min(lists[at + 1], wanted - all + number)
    while number < length do
      local most = math.max(1, math.min(33, math.floor((MAX_BYTES - bytes) * all / bytes)))
      local chunk = redis.call('LRANGE', key, number, math.min(length, number + most) - 1)
      for i = 1, #chunk do
        local each = chunk[i]
        bytes, all = bytes + #each, all + 1
        items[all] = each
        local stop = is_plain(each)
        if bytes > MAX_BYTES or not stop then return nil end
        if heads then heads[all] = sub(each, 1, stop - 1) end
      end
      if #chunk == 0 then return nil end
      number = number + #chunk
    end
    if number > 0 then taken[#taken + 1], taken[#taken + 2] = key, number end
    number = 0
  end
  return items, taken
end

-- Write what is delivered into the new lease, which must not exist, with its deadline: one item, or all of `items`, under
-- a key of its own; or the one in the `room` of a lease whose message of field 0 is acked by that. False, with nothing
-- written, if the new lease exists or that message is gone. Other fields of the room, which only another program can have
-- written, move along and keep a deadline. `each`: every item gets a field of its own, as they are settled one by one.
local function made(key, room, item, items, each, deadlines, deadline, id)
  if room and redis.pcall('RENAMENX', room, key) ~= 1 then return false end
  if redis.pcall('ZADD', deadlines, 'NX', deadline, id) == 1 then
    local added
    if room then
      added = redis.pcall('HSET', key, '0', item)
      if added == 0 then return true end
      if added == 1 then redis.call('HDEL', key, '0') end
    elseif not items then
      if redis.pcall('HSETNX', key, '0', item) == 1 then return true end
    elseif not each then
      if redis.pcall('HSETNX', key, 'batch', cmsgpack.pack(items)) == 1 then return true end
    else
      local fields = {}
      for i = 1, #items do fields[2 * i - 1], fields[2 * i] = i, items[i] end
      if redis.pcall('HSET', key, unpack(fields)) == #items then return true end
    end
    redis.call('ZREM', deadlines, id)
  end
  if room then redis.call('RENAME', key, room) end
  return false
end
-- The short way for a queue with groups that no limit holds back; see lib/lone_receive.lua. It takes the usual turns of
-- lib/even_turns.lua, and frees slots that no record counts.

-- Its functions are made here, as a queue without groups needs none. Nil for a queue whose groups have limits, or wait for a
-- time, or whose keys hold other types; or in which some group would have a second turn among `count`.
local function short_groups(meta, delayed, count)
  local FIRST_SEAT = 4503599627370496 -- see lib/group_members.lua
  local MAX_TAKEN = 500 -- see lib/turns.lua
  local LATE_MS = 1000 -- by which a clock may be behind
  count = math.min(count, MAX_TAKEN)
  local base = string.sub(meta, 1, -5)
  local states, turns, slots = base .. 'groups', base .. 'turns', base .. 'slots'
  local limits, later = base .. 'limits', base .. 'later'
  if redis.call('EXISTS', limits, later) > 0 then return nil end
  local standing, seats = redis.pcall('ZCARD', turns), redis.pcall('ZCOUNT', delayed, FIRST_SEAT, '+inf')
  if type(standing) ~= 'number' or type(seats) ~= 'number' then return nil end
  -- Of fewer groups than messages are asked for, one that has more would have a second turn.
  if standing > 0 and standing < count and standing < seats then return nil end
  local stored = group_records(states)
  local tags = stored.read_tags()
  if not tags or tags.looking or type(redis.pcall('HLEN', slots)) ~= 'number' then return nil end
  local even, it, turn = even_turns(states, turns, slots, stored), {}, nil

  local function may_take(item)
    local head = string.sub(item, 1, string.find(item, '\n', 1, true) or 0)
    return not string.find(head, ' x=', 1, true) and not string.find(head, ' u=', 1, true)
  end

  -- The next messages and how many are left; nil if the long way is needed.
  function it.read()
    if standing == 0 and tags.plain == 0 then return {}, 0 end
    turn = even.read(tags.queue, standing, count, MAX_BYTES, may_take)
    local left = turn and even.left(turn)
    if not left then return nil end
    return turn.items, left
  end

  -- Whether the clock was set back: what waits for a time is computed anew then.
  function it.is_late(now) return now + LATE_MS < tags.at_ms end

  -- See `uncounted` of lib/lone_acks.lua.
  function it.slots_of(ids, acks) return uncounted(slots, ids, acks) end

  function it.free(fields)
    if #fields > 0 then redis.call('HDEL', slots, unpack(fields)) end
  end

  -- Write the turn; its messages are in the lease.
  function it.write(lease_id, now)
    tags.at_ms = now
    even.write(turn, lease_id, tags)
  end

  -- Whether a score of delayed is the seat of a member that waits.
  function it.is_seat(score) return score >= FIRST_SEAT and score < MAX_MS end
  return it
end
-- The short way to receive and to ack, see lib/lone_acks.lua: for a queue with no attributes but its visibility, priorities,
-- journal and groups (see lib/lone_turns.lua), no waiting suspect, and no cancelled message among the next. Returns nil for any
-- other.
local function settle_receive_short()
  local redis, KEYS, ARGV = redis, KEYS, ARGV -- globals are looked up at each use
  local ready, deadlines, wake, dead, meta, stats = KEYS[1], KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17]
  local key, leases, suspects, asked = KEYS[#KEYS], #KEYS - 21, ARGV[5], ARGV[2]
  local count, id = ARGV[3] == '1' and 1 or whole(ARGV[3], 0, 1000), string.match(key, LEASE_ID)
  if asked ~= '' and asked ~= '0' and asked ~= 'each' or not count or not id
    or suspects ~= '0' and suspects ~= '1' and suspects ~= '2' then
    return nil
  end
  local acks = nil
  if not acks_alone(7, leases) then
    acks = acks_by_index(7, leases)
    if not acks then return nil end
  end
  local left = count > 0 and redis.pcall('LLEN', ready) or 0
  if type(left) ~= 'number' then return nil end
  -- EXISTS counts a key as often as it is named: 1 for attributes, 2 for a token, 4 or more for what is looked at closely.
  -- The new lease is one of those, unless it may come about by RENAMENX, which sees to that.
  local suspect, cancelled, renamed, there = KEYS[11], KEYS[19], not acks and leases == 1 and count < 2, nil
  if renamed then
    there = redis.call('EXISTS', meta, wake, wake, dead, dead, dead, dead, suspect, suspect, suspect, suspect,
      cancelled, cancelled, cancelled, cancelled)
  else
    there = redis.call('EXISTS', meta, wake, wake, dead, dead, dead, dead, suspect, suspect, suspect, suspect,
      cancelled, cancelled, cancelled, cancelled, key, key, key, key)
  end
  local visibility_ms, tombstones, levels, lists, book, groups, word = ARGV[4], nil, nil, nil, nil, false, 'SHORT'
  if there > 3 then
    if redis.call('EXISTS', suspect, key) > 0 then return nil end
    -- If dead letters cannot be written, nothing is delivered.
    local letters, stones = redis.call('TYPE', dead).ok, redis.call('TYPE', cancelled).ok
    if letters ~= 'stream' and letters ~= 'none' or stones ~= 'zset' and stones ~= 'none' then return nil end
    tombstones = stones == 'zset'
  end
  if there % 2 == 1 then
    local set = redis.pcall('HMGET', meta, 'paused', 'journal', 'levels', 'visibility_ms', 'groups')
    if set.err or set[1] then return nil end
    if set[2] == 'all' or set[2] == 'outcomes' then
      book, word = short_journal({ journal = KEYS[20], meta = meta, stats = stats, all = set[2] == 'all' }), 'NOTED'
      if not book then return nil end
    end
    if set[5] then
      groups, word = not book and short_groups(meta, KEYS[12], count), 'TURNS'
      if not groups then return nil end
    end
    levels = set[3]
    if visibility_ms == '' then visibility_ms = set[4] or '' end
  end
  visibility_ms = visibility_ms == '' and DEFAULT_VISIBILITY_MS or whole(visibility_ms, 1, MAX_VISIBILITY_MS)
  if not visibility_ms then return nil end
  local waiting = left
  if levels and count > 0 then
    lists = { ready, left }
    for level = 1, 9 do
      if string.find(levels, level, 1, true) then
        local length = redis.pcall('LLEN', KEYS[level + 1])
        if type(length) ~= 'number' then return nil end
        if length > 0 then
          ready, waiting, left = KEYS[level + 1], length, left + length
          lists[#lists + 1], lists[#lists + 2] = ready, length
        end
      end
    end
  end
  local item, items, taken, number, heads = nil, nil, nil, 0, nil
  if groups then
    if left > 0 then return nil end -- messages without a group take turns with the others
    if count > 0 then
      items, left = groups.read()
      if not items then return nil end
      item, number = items[1], #items
      if number < 2 then items = nil end
    end
  elseif left > 0 then
    item, number = redis.call('LINDEX', ready, 0), 1
    local stop = is_plain(item)
    if not stop then return nil end
    if book and book.all then heads = { string.sub(item, 1, stop - 1) } end
    if count > 1 and left > 1 and #item < MAX_BYTES then
      items, taken = with_others(lists or { ready, left }, item, math.min(count, left), heads)
      if not items then return nil end
      number = #items
    end
    left = left - number
  end
  if tombstones and item and marked_in(items or { item }, cancelled) then return nil end
  -- One acked message makes room for the next: its lease gets the new name and item. Otherwise leases are looked at first.
  local room, ids = item and not items and not acks and leases == 1 and KEYS[21], nil
  if room then
    ids = { string.match(room, LEASE_ID) }
  elseif acks then
    ids = acks.held()
  else
    ids = held_alone(leases)
  end
  if not ids or #ids ~= leases then return nil end
  local slots = groups and groups.slots_of(ids, acks)
  if slots == nil then return nil end
  local received, acked, stored, unacked, settled
  if room then
    received, acked, stored = counters(redis.pcall('HMGET', stats, 'received', 'acked', 'stored'))
  else
    received, acked, stored, unacked = counters(redis.pcall('HMGET', stats, 'received', 'acked', 'stored', 'unacked'))
  end
  local now, stamp = clock(ARGV[1], meta)
  if not received or not now or groups and groups.is_late(now) then return nil end
  local deadline, hint = count > 0 and now + visibility_ms or 0, left > 0 and 0 or -2
  if not item and count > 0 then
    -- Without an item nothing is renamed.
    if renamed and redis.call('EXISTS', key) == 1 then return nil end
    local due = redis.pcall('ZRANGE', KEYS[12], 0, 0, 'WITHSCORES')
    if due.err then return nil end
    if due[2] and not (groups and groups.is_seat(tonumber(due[2]))) then hint = math.min(math.max(1, tonumber(due[2]) - now), MAX_MS) end
  end

  local rows
  if book then
    -- Acks whose events the caller does not write are for the long way, which reads the messages.
    for l = 1, leases do
      if not acks or not acks.told[l] then return nil end
    end
    book.now, book.stamp = now, stamp
    rows = book.rows('delivered ' .. stamp .. ' - - - -', heads or {})
    if not rows then return nil end
  end

  -- The first write to a key checks its type, or a read; on failure the earlier writes are undone.
  if item then
    if not made(key, room, item, items, asked == 'each', deadlines, deadline, id) then return nil end
    if groups then
      groups.write(id, now)
    elseif taken then
      for i = 1, #taken, 2 do
        local list = taken[i]
        redis.call('LTRIM', list, taken[i + 1], -1)
      end
    else
      redis.call('LTRIM', ready, 1, -1)
    end
  elseif leases > 0 and type(redis.pcall('ZCARD', deadlines)) ~= 'number' then
    return nil
  end
  local first, counted = item, 0
  if slots then groups.free(slots) end
  if room then
    if redis.call('ZREM', deadlines, ids[1]) > 0 then first = nil end
    counted = redis.pcall('HSET', stats, 'received', received + 1, 'acked', acked + 1, 'stored', stored - 1)
  else
    local done = leases
    if acks then
      done, settled, ids = acks.take(ids, stats)
    elseif leases > 0 then
      redis.call('DEL', unpack(KEYS, 21, 20 + leases))
    end
    if ids[1] and redis.call('ZREM', deadlines, unpack(ids)) > 0 then first = nil end
    if leases > 0 then
      counted = redis.pcall('HSET', stats, 'received', received + number, 'acked', acked + done, 'stored', stored - done,
        'unacked', unacked + number - done)
    elseif item then
      counted = redis.pcall('HSET', stats, 'received', received + number, 'unacked', unacked + number)
    end
  end
  local degraded = type(counted) == 'number' and 0 or 1
  if book then
    for l = 1, leases do book.acked(acks.told[l], settled[l]) end
    degraded = math.max(degraded, book.write(rows, ARGV[6]))
  end
  -- The reaper's watch for gaps starts with the first lease; see grace.lua.
  if first and redis.call('ZCARD', deadlines) == 1 then redis.pcall('HSET', stats, 'reaped_ms', stamp) end
  if left > 0 and there % 4 < 2 then
    local EIGHT = items and { '1', '1', '1', '1', '1', '1', '1', '1' } or nil -- as many as `ring` of lib/counters.lua leaves
    local rung = items and redis.pcall('RPUSH', wake, unpack(EIGHT, 1, math.min(left, 8))) or redis.pcall('RPUSH', wake, '1')
    if type(rung) ~= 'number' then degraded = 1 end
  elseif item and left == 0 and there % 4 > 1 and ARGV[6] ~= '' then
    redis.pcall('LTRIM', wake, 1, 0)
  end
  -- A table in a reply costs the server as much as a command.
  if asked ~= '0' then
    settled = settled and table.concat(settled, ' ') or ''
    if items then return { word, stamp, deadline, left, hint, degraded, settled, unpack(items) } end
    return { word, stamp, deadline, left, hint, degraded, settled, item }
  end
  if not settled then
    settled = {}
    for i = 1, leases do settled[i] = 1 end
  end
  return { 'OK', stamp, text(deadline), left, text(hint), 0, degraded, settled, items or { item }, {}, 0, book and 1 or 0,
    groups and 0 or nil }
end
local short = settle_receive_short()
if short then return short end
end
-- Doorbell and counters come last, in this order, and must not fail the call: the change itself is done by then.
local missed = 0 -- 1 once the doorbell could not be rung, or the dead letters took no more

-- Returns 1 (degraded) if a counter failed now or a write was missed before, else 0.
local function count(stats, amounts)
  local degraded = missed
  for name, amount in pairs(amounts) do
    if amount ~= 0 then
      local reply = redis.pcall('HINCRBY', stats, name, string.format('%.0f', amount))
      if type(reply) == 'table' and reply.err then degraded = 1 end
    end
  end
  return degraded
end

-- Wake up to `messages` waiting consumers. The doorbell is bounded: a consumer that wakes and leaves
-- messages behind rings again, so eight tokens start any number of consumers.
local MAX_TOKENS, TOKENS = 8, { '1', '1', '1', '1', '1', '1', '1', '1' }
local function ring(wake, messages)
  local tokens = redis.pcall('LLEN', wake)
  if type(tokens) ~= 'number' then
    missed = 1
    return
  end
  local lacking = math.min(messages, MAX_TOKENS) - tokens
  if lacking > 0 and type(redis.pcall('RPUSH', wake, unpack(TOKENS, 1, lacking))) ~= 'number' then missed = 1 end
end
-- The keys of a queue as consumers and reapers declare them, in this order in KEYS:
--   1-10 ready … ready:9 LIST · 11 suspect LIST · 12 delayed ZSET · 13 unacked ZSET · 14 wake LIST
--   15 dead STREAM · 16 meta HASH · 17 stats HASH · 18 unique HASH · 19 cancelled ZSET · 20 journal STREAM
-- and from 21 on the leases (HASH) of the call.
local suspect, delayed, unacked, wake, dead = KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local meta, stats, unique, cancelled, journal = KEYS[16], KEYS[17], KEYS[18], KEYS[19], KEYS[20]
local FIRST_LEASE = 21
local has_groups = false -- of the queue, once its attributes are read; see lib/groups.lua
local ALL_LEVELS = { 9, 8, 7, 6, 5, 4, 3, 2, 1, 0 } -- as `levels_in_use` has them

local function ready(level_number)
  return KEYS[level_number + 1]
end

local function lease_id(key)
  return string.match(key, '}:lease:([%w._-]+)$')
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

-- A refusal if a key that this call may write holds another type, else nil. The last of `levels` is the likeliest.
-- `without_bell`: a doorbell of another type does not stop the call, which cannot ring then.
local function broken_queue(levels, without_leases, without_bell)
  local expected = { stats, 'hash', unacked, 'zset' }
  local function expect(key, its_type)
    expected[#expected + 1] = key
    expected[#expected + 1] = its_type
  end
  for i = FIRST_LEASE, without_leases and 0 or #KEYS do expect(KEYS[i], 'hash') end
  local base = string.sub(meta, 1, -5)
  if has_groups then
    -- Their members are most likely all that waits.
    expect(base .. 'groups', 'hash')
    expect(base .. 'slots', 'hash')
    expect(delayed, 'zset')
    expect(base .. 'turns', 'zset')
    expect(base .. 'limits', 'hash')
    expect(base .. 'children', 'zset')
    expect(base .. 'later', 'zset')
  end
  expect(ready(levels[#levels]), 'list')
  if not without_bell then expect(wake, 'list') end
  for i = #levels - 1, 1, -1 do expect(ready(levels[i]), 'list') end
  if not has_groups then expect(delayed, 'zset') end
  expect(journal, 'stream')
  expect(dead, 'stream')
  expect(suspect, 'list')
  expect(unique, 'hash')
  expect(cancelled, 'zset')
  return broken(expected)
end
-- The attributes of a queue that consumers and reapers read.

local DEFAULT_MAX_RECEIVES = 5
-- Until when receives wait because a handler said that it was rate limited: `paused` is `until <ms>`, since `limited_ms`. The
-- first receive after that ends it.
local limited_ms

-- That time after a clock was set back to before the limit was met: the queue waits as long as it was asked to, not longer.
local function set_back(until_ms, since, now)
  return until_ms - math.max(0, (tonumber(since) or now) - now)
end

-- Read the attributes; nil and a refusal if meta is not a HASH.
local function read_attributes()
  local found = redis.pcall('HMGET', meta, 'visibility_ms', 'paused', 'levels', 'max_receives', 'journal', 'journal_cap',
    'journal_epoch', 'journal_shed', 'pause_strict', 'groups')
  if found.err then return nil, { 'BROKEN', meta, redis.call('TYPE', meta).ok } end
  limited_ms = found[2] and tonumber(string.match(found[2], '^until (%d+)$'))
  has_groups = found[10] == '1'
  return {
    visibility_ms = whole(found[1], 1, MAX_VISIBILITY_MS) or DEFAULT_VISIBILITY_MS,
    paused_out = found[2] == 'out' or found[2] == 'all',
    strictly_in = (found[2] == 'in' or found[2] == 'all') and found[9] == '1',
    levels = levels_in_use(found[3]),
    max_receives = whole(found[4], 1, MAX_MS) or DEFAULT_MAX_RECEIVES,
    journal = { mode = found[5], cap = found[6], epoch = found[7], shed = found[8] },
  }
end
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
-- The journal: the outcomes of messages, one stream entry per call (more if its groups exceed 16 KiB).
--   journal STREAM   `<epoch>-<entry number>` → n number of its first event · k events · b bytes of all entries before it ·
--                    t now ms · w who made the call · e1 groups of events, an empty line between two
-- A group is a line with what its events have in common, `<event> <delivered_ms> <times> <task> <reason> <error class>`,
-- `-` where a field is unknown; and for each event the header of its message, `q1 …`, as it stood before the event.
-- See docs/protocol.md. Fields that the messages of a call share are stored once.
-- Numbers come from counters in `stats` and are dense within an epoch, so a missing entry shows as a gap.

local MAX_GROUPS = 16384 -- bytes of the groups of one entry
local ROW, GROUP = '\nq1 ', '\n\n' -- what stands before each header, and between two groups
local ROWS_AT_ONCE = 250
local HEADER_SHAPE = '^q1 ([%w._-]+ %d+ %d+ %d+ %d+ %d+[^\n]*)\n'

-- `open_journal` adds the functions of the book, if the journal is on: a server creates the functions of a script again at
-- each call, and most queues have no journal. `rows` is the group being filled: its first line at 0, then its headers.
local book = {
  on = false, all = false, shed = false, events = 0,
  entries = {}, groups = {}, number = 0, bytes = 0, rows = {}, rows_bytes = 0,
}

local function open_book()
  local function close_entry()
    if book.number == 0 then return end
    book.entries[#book.entries + 1] = { number = book.number, groups = table.concat(book.groups, GROUP) }
    book.groups, book.number, book.bytes = {}, 0, 0
  end

  local function put_group(group, number)
    if book.bytes + #group > MAX_GROUPS then close_entry() end
    book.groups[#book.groups + 1] = group
    book.number, book.bytes = book.number + number, book.bytes + #group + #GROUP
  end

  local function close_rows()
    local rows = book.rows
    if #rows == 0 then return end
    book.rows, book.rows_bytes = {}, 0
    put_group(table.concat(rows, ROW, 0), #rows)
  end

  function book.close()
    close_rows()
    close_entry()
  end

  -- Add a group of `number` events, at most 16 KiB. While the journal is shed they are only counted.
  function book.add_group(group, number)
    book.events = book.events + number
    if book.shed then return end
    close_rows()
    put_group(group, number)
  end

  -- Add one event to the group that begins with `first`, which is the last one or a new one.
  function book.add_row(first, header)
    book.events = book.events + 1
    if book.shed then return end
    if first ~= book.rows[0] or book.rows_bytes + #header + #ROW > MAX_GROUPS then
      close_rows()
      book.rows, book.rows_bytes = { [0] = first }, #first
    end
    header = string.sub(header, 1, MAX_GROUPS - #first - #ROW)
    book.rows[#book.rows + 1] = header
    book.rows_bytes = book.rows_bytes + #header + #ROW
  end

  -- Add the same event of many messages, given their headers; this is the hot path of a journal of everything. Changes
  -- `headers`: `first` takes the place before those of each group, so that the group is made in one piece.
  local function add_rows(first, headers)
    if book.shed then
      book.events = book.events + #headers
      return
    end
    for from = 1, #headers, ROWS_AT_ONCE do
      local to = math.min(from + ROWS_AT_ONCE - 1, #headers)
      headers[from - 1] = first
      local group = table.concat(headers, ROW, from - 1, to)
      if #group <= MAX_GROUPS then
        book.add_group(group, to - from + 1)
      else
        for i = from, to do book.add_row(first, headers[i]) end
      end
    end
  end

  -- The header of an item in the journal. A plain one is named after its delivery, if it had one.
  function book.header_of(item, lease, index)
    local header = string.match(item, HEADER_SHAPE)
    if header then return header end
    local id = lease and string.find(item, '^[{[]') and lease .. '.' .. index or '-'
    return id .. ' ' .. text(book.now) .. ' 0 0 0 0'
  end

  local function word(value)
    if not value or value == '' then return '-' end
    return (string.gsub(string.sub(value, 1, 200), '[^%w_.:-]', '_'))
  end

  function book.record(event, item, about)
    if book.shed then return book.add_row() end
    about = about or {}
    local times = about.times and about.times ~= '' and about.times or '- - -'
    local first = event .. ' ' .. times .. ' ' .. word(about.reason) .. ' ' .. word(about.class)
    book.add_row(first, book.header_of(item, about.lease, about.index))
  end

  -- `heads` are headers, or whole items if these are plain: `plain` says whether any is. `reasons`, where given: what each
  -- has waited for, false for none.
  function book.record_delivered(heads, lease, plain, reasons)
    for i = 1, plain and #heads or 0 do
      if string.find(heads[i], '^[{[]') then heads[i] = book.header_of(heads[i], lease, #heads > 1 and i or 0) end
    end
    if not reasons then return add_rows('delivered ' .. text(book.now) .. ' - - - -', heads) end
    for i, head in ipairs(heads) do
      book.add_row('delivered ' .. text(book.now) .. ' - - ' .. (reasons[i] or '-') .. ' -', head)
    end
  end

  function book.record_sent(items)
    local heads = {}
    for i, item in ipairs(items) do
      local stop = string.find(item, '\n', 1, true)
      heads[i] = stop and string.sub(item, 4, stop - 1) or book.header_of(item)
    end
    add_rows('sent - - - - -', heads)
  end

  -- A group of calls begins or is decided: of no message. What follows its time tells it from one that had its id before.
  --   group_begun     `<group id>:<made ms>:<members>:<policy>:<id of the callback, or of the run that waits>`
  --   group_decided   `<group id>:<made ms>:<outcome>:<id of the callback, or of the run that continues; or ->`
  --     outcome: ok, failed, cancelled, abandoned (by an operator), ended (its run had), lost (its state was)
  function book.record_group(event, id, made, ...)
    book.add_row(event .. ' - - - ' .. table.concat({ id, made or '-', ... }, ':') .. ' -', book.header_of(''))
  end

  -- A step of a run got its value: `<name>=<digest>`. No two names are written alike; the digest is 64 bits of SHA-1.
  function book.record_step(header, name, value)
    name = string.gsub(name, '[^%w_.:#!~*%[%]-]', function(char) return string.format('%%%02X', string.byte(char)) end)
    book.add_row('step - - - ' .. name .. '=' .. string.sub(redis.sha1hex(value), 1, 16) .. ' -', header)
  end
end

-- `attributes`: mode, cap, epoch and shed as meta has them. Before this nothing is recorded.
local function open_journal(attributes, now)
  local DEFAULT_CAP, MIN_CAP, MAX_CAP = 67108864, 1048576, 1099511627776
  book.all = attributes.mode == 'all'
  book.on = book.all or attributes.mode == 'outcomes'
  if not book.on then return end
  book.shed = attributes.shed == '1'
  book.cap = whole(attributes.cap, MIN_CAP, MAX_CAP) or DEFAULT_CAP
  book.epoch = whole(attributes.epoch, 1, MAX_MS)
  book.now = now
  book.journal, book.meta, book.stats = journal, meta, stats
  open_book()
end

-- Record one event of an item. `about` may have: lease and index (for plain items), reason, class, and times, which
-- are `<delivered_ms> <times> <task>`.
local function record(event, item, about)
  if book.on then book.record(event, item, about) end
end

-- Write what was recorded, see lib/journal_entries.lua; returns 1 (degraded) if that failed, else 0.
local function write_journal(caller)
  if book.events == 0 then return 0 end
  book.close()
  return write_entries(book, caller)
end
-- The order of returned messages. A returned message goes to its old place among the earlier returned ones at the head of
-- ready, whichever lease comes first. Those have the flag `o`, and stand in front of all that were never delivered. The old
-- place is the time at which a message became ready, in ms; within one ms, ids of one process decide. Beyond that the order
-- is unknown: then a later call goes to the front, and within one call a later lease goes behind the others.

-- When a message became ready before it was delivered, in ms. A plain one has just received its header.
local function old_place(message, received)
  if message.at == 0 then return received or tonumber(message.sent) end
  return number_in(message.flags, ' o=') or number_in(message.flags, ' t=') or tonumber(message.sent)
end

local MAX_PASSED, MAX_PASSED_BYTES = 1000, 262144 -- how many messages, and their bytes, one lease may be put behind
local passable, passable_bytes = 2 * MAX_PASSED, 2 * MAX_PASSED_BYTES -- how much of that is left for all leases of the call

-- Whether another lease may be put back by this call: few messages were passed so far, which are all written again.
local FEW_PASSED = 300
local function may_pass()
  return passable > 2 * MAX_PASSED - FEW_PASSED and passable_bytes >= MAX_PASSED_BYTES
end

-- Put items, whose old places are `order`, at the head of a list of ready. `later`: everything else that this call returns
-- was delivered before. The functions are nested because a server creates those of a script again at each call.
local function push_heads(key, items, order, later)
  local AT_ONCE = 500

  local function id_of(item) return string.match(item, '^q1 (%S+)') or '' end

  -- Whether the first of two ids made by one process was made before the other; nil if they were not.
  local function id_before(one, other)
    if #one == 20 and #other == 20 and string.sub(one, 1, 10) == string.sub(other, 1, 10) then return one < other end
    local maker, number, index = string.match(one, '^(%w+)%-(%d+)[%d-]*%.(%d+)$')
    local other_maker, other_number, other_index = string.match(other, '^(%w+)%-(%d+)[%d-]*%.(%d+)$')
    if not maker or maker ~= other_maker then return nil end
    if number ~= other_number then return tonumber(number) < tonumber(other_number) end
    return tonumber(index) < tonumber(other_index)
  end

  -- Whether a message at the head stays in front of one that comes back.
  local function stays_before(head_ms, head_id, at_ms, id)
    if head_ms ~= at_ms then return head_ms < at_ms end
    local before = id_before(head_id, id)
    if before == nil then return later end
    return before
  end

  -- The returned messages at the head that became ready before the last of the items: {item, ms, id} each.
  local function read_passed()
    local passed, bytes, step, last_ms, last_id = {}, 0, 1, order[#order], id_of(items[#items])
    local most, most_bytes = math.min(MAX_PASSED, passable), math.min(MAX_PASSED_BYTES, passable_bytes)
    while #passed < most and bytes < most_bytes do
      local chunk = redis.call('LRANGE', key, #passed, #passed + step - 1)
      for _, item in ipairs(chunk) do
        local at_ms = kind(item) == 'own' and number_in(header(item), ' o=')
        if not at_ms or not stays_before(at_ms, id_of(item), last_ms, last_id) then return passed end
        passed[#passed + 1] = { item, at_ms, id_of(item) }
        bytes = bytes + #item
      end
      if #chunk < step then break end
      step = math.min(#passed, 32, most - #passed) -- doubles what was read: bodies may be large
    end
    return passed
  end

  local passed, merged, next_passed = read_passed(), items, 1
  if #passed > 0 then
    passable, merged = passable - #passed, {}
    for _, each in ipairs(passed) do passable_bytes = passable_bytes - #each[1] end
    for i, item in ipairs(items) do
      local id, head = id_of(item), passed[next_passed]
      while head and stays_before(head[2], head[3], order[i], id) do
        merged[#merged + 1] = head[1]
        next_passed = next_passed + 1
        head = passed[next_passed]
      end
      merged[#merged + 1] = item
    end
    for i = next_passed, #passed do merged[#merged + 1] = passed[i][1] end
    -- Push first: a user without the right to push is refused before anything is trimmed. The trim removes the extra item.
    redis.call('LPUSH', key, '')
    redis.call('LTRIM', key, #passed + 1, -1)
  end
  for last = #merged, 1, -AT_ONCE do
    local reversed = {}
    for i = last, math.max(last - AT_ONCE + 1, 1), -1 do reversed[#reversed + 1] = merged[i] end
    redis.call('LPUSH', key, unpack(reversed))
  end
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
-- The lines of groups and parents whose members wait for a turn. See lib/groups.lua.
more_of_groups[#more_of_groups + 1] = function(it)
  local turns, children, in_parts = it.turns, it.children, it.in_parts

  local function child(parent, turn, name)
    return string.format('%s\n%016d\n%s', parent, turn, name)
  end

  -- Groups of a parent that may run, in their turn, `most` at most.
  function it.first_children(parent, from, most)
    local found = redis.call('ZRANGEBYLEX', children, '[' .. parent .. '\n', '(' .. parent .. '\v', 'LIMIT', from, most)
    for i, entry in ipairs(found) do found[i] = string.match(entry, '([^\n]+)$') end
    return found
  end

  -- The group of a parent whose turn it is, or nil.
  function it.first_child(parent)
    return it.first_children(parent, 0, 1)[1]
  end

  -- Let a group of a parent stand in line (at its end), or not; writes neither record. `lines`, where given, collects what
  -- the caller writes with `write_lines`.
  function it.queue_up(parent, name, stands, lines)
    local one, above = it.record(name), it.record(parent)
    local left, joined = lines and lines.left or {}, lines and lines.joined or {}
    if one.turn > 0 then left[#left + 1] = child(parent, one.turn, name) end
    one.turn = 0
    if stands then
      above.turn = above.turn + 1
      one.turn = above.turn
      joined[#joined + 1], joined[#joined + 2] = 0, child(parent, one.turn, name)
    end
    if not lines then it.write_lines({ left = left, joined = joined }) end
  end

  function it.write_lines(lines)
    in_parts('ZREM', children, lines.left)
    in_parts('ZADD', children, lines.joined)
  end

  local function take_turn(name, may)
    if not may then
      redis.call('ZREM', turns, name)
      return
    end
    local tag = math.max(it.record(name).tag, it.tags().queue)
    if redis.call('ZADD', turns, 'NX', tag, name) == 1 then it.opened = it.opened + 1 end
  end

  local function start_of(one)
    local start, next_start = it.stored.start_of(it.tags(), one)
    it.next_start = next_start or it.next_start
    return start
  end

  local function has_members(one) return one.number and one.first <= one.last end

  -- Bring the turns of groups up to date, and write their records and those of their parents.
  function it.refresh_all(names)
    local lines, parents, stand, leave = { left = {}, joined = {} }, {}, {}, {}
    local function turn_of(name, one, may)
      if may then
        stand[#stand + 1], stand[#stand + 2] = start_of(one), name
      else
        leave[#leave + 1] = name
      end
    end
    for _, name in ipairs(names) do
      local one = it.record(name)
      one.stale = false
      local may, parent = has_members(one) and it.is_open(name), one.parent
      if not parent then
        if one.number then turn_of(name, one, may) end -- without members it does not stand in line
      else
        if (one.turn > 0) ~= (may and true or false) then it.queue_up(parent, name, may, lines) end
        if not parents[parent] then
          parents[parent] = true
          parents[#parents + 1] = parent
        end
      end
      it.write(name)
    end
    it.write_lines(lines)
    for _, parent in ipairs(parents) do
      local one, first = it.record(parent), it.first_child(parent)
      turn_of(parent, one, first and it.is_open(parent))
      if not first then one.turn = 0 end
      it.write(parent)
    end
    it.opened = it.opened + in_parts('ZADD', turns, stand, 'NX')
    in_parts('ZREM', turns, leave)
  end

  -- Bring the turn of a group or parent up to date, and write its record.
  function it.update_turn(name)
    if string.sub(name, -1) ~= '/' then return it.refresh(name) end
    take_turn(name, it.is_open(name) and it.first_child(name))
    it.write(name)
  end

  it.line_of = child
end
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
-- Groups that wait for a time, and those whose turn it is. See lib/groups.lua.

more_of_groups[#more_of_groups + 1] = function(it)
  local SLASH = 47
  local MAX_BACK = 1000 -- groups that a call looks at when the clock was set back
  local STOPPED_MS = 60000
  local turns, later = it.turns, it.later

  local put = {}
  function it.put_later(name, at_ms)
    put[name] = true
    redis.call('ZADD', later, text(at_ms), name)
  end

  -- The clock was set back by `back_ms`: those that wait the longest, whose times are nearer by as much. Of more than
  -- MAX_BACK the rest follows in later calls, and some of them wait less than they were told to.
  local function set_back(now, back_ms)
    local far = redis.call('ZRANGE', later, 0, MAX_BACK - 1, 'REV')
    it.read_many(far)
    for _, name in ipairs(far) do
      local one = it.record(name)
      if one.wait_ms > now then one.wait_ms = math.max(now, one.wait_ms - back_ms) end
    end
    return far
  end

  -- A caller of limits stopped halfway: a minute after its last call deliveries need not be counted for it. If it comes back,
  -- it counts from the beginning.
  local function forget_stopped(looking, now)
    local at_ms = tonumber(string.match(looking, ' (%d+)$'))
    if not at_ms or math.abs(now - at_ms) > STOPPED_MS then it.end_looking() end
  end

  -- Groups whose time has come, at most 100 a call. After a clock was set back, also those that wait the longest: their
  -- waits and rates are computed anew.
  function it.come_back(now)
    local due = redis.call('ZRANGE', later, '-inf', text(now), 'BYSCORE', 'LIMIT', 0, 100)
    local seen = it.tags()
    if seen.looking then forget_stopped(seen.looking, now) end
    if now + 1000 < seen.at_ms then
      local far = set_back(now, seen.at_ms - now)
      for _, name in ipairs(far) do due[#due + 1] = name end
      if #far < MAX_BACK then seen.at_ms = now end
    else
      seen.at_ms = now
    end
    if #due == 0 then return end
    redis.call('ZREM', later, unpack(due))
    it.read_many(due)
    it.begin()
    for _, name in ipairs(due) do
      local until_ms = it.waits(name, now)
      if until_ms then
        it.put_later(name, until_ms)
        it.write(name)
      else
        it.update_turn(name)
      end
    end
    it.finish()
  end

  function it.next_later()
    return tonumber(redis.call('ZRANGE', later, 0, 0, 'WITHSCORES')[2])
  end

  local FEW = 16

  -- How many members of a group may run now, by its own limits; at least one.
  local function may_start(name, now)
    local one, limit = it.record(name), it.limit(name)
    local most = math.min(one.last - one.first + 1, limit.concurrency - one.busy)
    if limit.every_ms then most = math.min(most, math.floor((now - one.rate_ms) / limit.every_ms + limit.burst)) end
    return math.max(1, most)
  end

  -- How many members may run now: at least one of each group that stands in line, and where few do, all of them; of the
  -- groups of a parent the first few count.
  function it.running(now)
    local standing = redis.call('ZCARD', turns)
    if standing == 0 or standing > FEW then return standing end
    local number, names = 0, redis.call('ZRANGE', turns, 0, -1)
    it.read_many(names)
    for _, name in ipairs(names) do
      if string.sub(name, -1) == '/' then
        local below, all = it.first_children(name, 0, FEW + 1), 0
        it.read_many(below)
        for _, child in ipairs(below) do all = all + may_start(child, now) end
        number = number + math.max(1, math.min(all, it.limit(name).concurrency - it.record(name).busy))
      else
        number = number + may_start(name, now)
      end
    end
    return number
  end
  -- Those that stand in line, `count` at most, after the first `from`: {name, tag, …}.
  function it.window(from, count) return redis.call('ZRANGE', turns, from, from + count - 1, 'WITHSCORES') end

  -- Whether a group or parent that this call has not put aside may run.
  function it.may_run(name)
    local one, is_parent = it.record(name), string.byte(name, -1) == SLASH
    if not is_parent and not one.number or put[name] or not it.is_open(name) then return false end
    if is_parent then return it.first_child(name) ~= nil end
    return one.first <= one.last
  end

  -- Those that have `left` the line are often the first that stood there when `window` was read, and nothing has been written
  -- to it since: then these are removed as a range. Returns whether they are removed. Without a window they are the first.
  function it.leave_first(left, window)
    for i = 1, window and #left or 0 do
      if left[i] ~= window[2 * i - 1] then return false end
    end
    if #left > 0 then redis.call('ZREMRANGEBYRANK', turns, 0, #left - 1) end
    return true
  end

  -- Write who stands in line, and where: {virtual time, name, …}, and who has left it. One that ran empty may have got
  -- members since, from a list of ready. `removed`: those that have left are out of the store already.
  function it.set_turns(stand, left, removed)
    local gone = {}
    for _, name in ipairs(left) do
      if (it.record(name).number or string.byte(name, -1) == SLASH) and it.may_run(name) then
        stand[#stand + 1], stand[#stand + 2] = it.record(name).tag, name
      else
        gone[#gone + 1] = name
      end
    end
    it.in_parts('ZADD', turns, stand)
    if not removed then it.in_parts('ZREM', turns, gone) end
  end
end
-- The outbox of a queue holds messages and results for other queues until they are stored there. Each destination has its
-- own lane, so that one which is away holds up no other.
--   out HASH                   destination → `<lane> <number of the last entry>`
--   out:<destination> STREAM   `<number>-0` → what is to be stored there: a message, see lib/effects.lua, a result, the end
--                              of a member of a group of calls, or such a group, see join.lua
-- Numbers follow the clock: those of entries that a failover has taken back are not given again.

local function outbox(destination)
  local outs = string.sub(meta, 1, -5) .. 'out'
  return outs, outs .. ':' .. destination
end

-- Add an entry, a list of names and values. `id` is of the message that it comes of. Several of one call share `lanes`, a
-- table that `write_lanes` writes afterwards.
local function send_out(destination, id, entry, now, lanes)
  local NUMBERS_PER_MS = 1024
  local outs, stream = outbox(destination)
  local found = lanes and lanes[destination]
  local lane, last = string.match(found or redis.call('HGET', outs, destination) or '', '^(%S+) (%d+)$')
  lane = lane or 'out-' .. string.sub(redis.sha1hex(stream .. id .. text(now)), 1, 24)
  local number = text(math.max((tonumber(last) or 0) + 1, now * NUMBERS_PER_MS))
  redis.call('XADD', stream, number .. '-0', unpack(entry))
  if lanes then
    lanes[destination] = lane .. ' ' .. number
  else
    redis.call('HSET', outs, destination, lane .. ' ' .. number)
    redis.pcall('HINCRBY', stats, 'followed', 1)
  end
end
-- What follows the end of a message: its unique key is free, clients that wait for its result are notified, its group of
-- calls counts it, and the state of a run (flag c) expires, as do the values that were kept for a callback (flag h).
--   result:<message id> STRING, expires   `<state>[ words]\n<rest>`: how the message ended, see docs/protocol.md
--   run:<message id> HASH, runs ZSET      see step.lua
--   join:<message id> HASH, joins ZSET    see join.lua
-- Their keys are made here: a script that ends messages learns their ids as it reads them. They are in the slot of
-- the queue. The name of a result is also the sharded channel that waiting clients listen to.

local MAX_KEEP_MS, MAX_RESULT = 2592000000, 1114112 -- 30 days · 1 MiB and what encryption adds

-- Free the unique key of a message that has ended, if the key still is this message's.
local function free_unique(key, id)
  local holder = redis.call('HGET', unique, key)
  if holder and string.match(holder, '^%S+') == id then redis.call('HDEL', unique, key) end
end

-- Senders percent-encode the values of flags; the hash holds unique keys unencoded.
local function percent_decoded(value)
  return (string.gsub(value, '%%(%x%x)', function(digits) return string.char(tonumber(digits, 16)) end))
end

local function free_unique_of(item)
  local key = flag(item, ' u=')
  if key then free_unique(percent_decoded(key), string.match(item, '^q1 (%S+)')) end
end

-- Whether a waiting message with an expiry has lost its unique key: it had expired, another one took the key, and the clock
-- was set back since. `head`: its header. It must not run beside the other. Once delivered, it holds its key until its end.
local function has_lost_key(head)
  local key = string.find(head, ' u=', 1, true) and not string.find(head, ' l=', 1, true) and flag_in(head, ' u=')
  local id = key and string.match(head, '^(%S+) %d+ 0 ')
  local holder = id and redis.call('HGET', unique, percent_decoded(key))
  return holder and string.match(holder, '^%S+') ~= id
end

-- A message is delivered: with flag l it frees its unique key; with an expiry, after which it could still run, it holds
-- the key until its end from now on.
local function start_unique(head)
  local key, id = flag_in(head, ' u='), string.match(head, '^%S+')
  if not key then return end
  key = percent_decoded(key)
  if string.find(head, ' l=', 1, true) then
    free_unique(key, id)
  elseif string.find(head, ' x=', 1, true) then
    -- Without a holder its time had come, and the clock was set back since.
    local holder, more = string.match(redis.call('HGET', unique, key) or id .. ' 0', '^(%S+) %d+(.*)$')
    if holder == id then redis.call('HSET', unique, key, id .. ' ' .. text(MAX_MS) .. more) end
  end
end

local function result_key(id)
  return string.sub(meta, 1, -5) .. 'result:' .. id
end

-- Only a hint: waiting clients also look now and then.
local function tell_waiting(key)
  redis.pcall('SPUBLISH', key, '')
end

local tell_others
do
-- Name the message that has ended so, unless the words name one already.
local function with_step(words, task, own_id)
  local first, rest = string.match(words, '^([^\n]*)(.*)$')
  if string.find(first, '^dead %S+ %S* %S+ %S+ %S+$') or string.find(first, '^%l+ %S+ %S+ %S+$') then return words end
  return first .. ' ' .. string.match(meta, '{(.*)}:meta$') .. ' ' .. task .. ' ' .. own_id .. rest
end

local function tell(queue, own_id, entry, words, task)
  entry[#entry + 1] = words == '' and '' or with_step(words, task, own_id)
  if not pcall(send_out, queue, own_id, entry, (clock(ARGV[1], meta))) then missed = 1 end
end

-- A message may be a step of a chain. Flag j says where the chain's result is waited for, percent-encoded:
-- `<queue>:<message id>:<keep ms>:<task of this step>`, or `-`. Reports there that the chain has ended without a value, and
-- at which step.
local function tell_chain(value, own_id, words)
  local queue, id, keep_ms, task = string.match(percent_decoded(value), '^([a-z0-9][a-z0-9._-]*):([%w._-]+):(%d+):([%w_.-]+)$')
  if not queue or #queue > 64 or #id > 64 or not whole(keep_ms, 1, MAX_KEEP_MS) then return end
  tell(queue, own_id, { 'result', id, 'keep', keep_ms, 'words' }, words, task)
end

-- A message may be a member of a group of calls. Flag i says where these are counted, see gather.lua:
-- `<queue or shard>:<group id>:<number of the member>:<task>`, percent-encoded.
local function tell_group(value, own_id, words)
  local queue, id, member, task =
    string.match(percent_decoded(value), '^([a-z0-9][a-z0-9._-]*/?%d*):([%w._-]+):(%d+):([%w_.-]+)$')
  if not queue or #queue > 67 or #id > 64 or not whole(member, 0, MAX_MS) then return end
  tell(queue, own_id, { 'join', id, 'member', member, 'words' }, words, task)
end

-- Report to other queues how a message without a value has ended; no words: it continues after all. `dropped`: it was
-- reported as dead before.
function tell_others(head, own_id, words, dropped)
  local chain, member = flag_in(head, ' j='), flag_in(head, ' i=')
  if chain and chain ~= '-' and not dropped then tell_chain(chain, own_id, words) end
  if member then tell_group(member, own_id, words) end
end
end

-- A message has ended without a value, `words` say how. Written only where its header asks for a result (flag r). A
-- failure, of a user without the right to, costs the message nothing and is reported.
local function end_result(item, words)
  if kind(item) ~= 'own' or not has_flags(item) then return end
  local head = header(item)
  local keep_ms, id = number_in(head, ' r='), string.match(head, '^([%w._-]+) ')
  if id then tell_others(head, id, words) end
  if not keep_ms or keep_ms < 1 or not id or #id > 64 then return end
  local key = result_key(id)
  local kept = redis.pcall('SET', key, words, 'PX', text(math.min(keep_ms, MAX_KEEP_MS)))
  if kept.err then missed = 1 else tell_waiting(key) end
end

local function run_key(id)
  return string.sub(meta, 1, -5) .. 'run:' .. id
end

-- The runs that have not ended.
local function runs_key()
  return string.sub(meta, 1, -5) .. 'runs'
end

-- Groups of calls, see join.lua.
local joins = {}

function joins.key(id)
  return string.sub(meta, 1, -5) .. 'join:' .. id
end

-- Those that have not ended.
function joins.index()
  return string.sub(meta, 1, -5) .. 'joins'
end

-- A group of calls has ended: its values go. The record of its start stays for as long as it says, so that it is not
-- started again. `outcome`: of one that was not decided, see journal.lua. `queues_ms`, or nil: how long the queues of its calls
-- stay known, of which a cancel that was interrupted has not reached all.
function joins.finish(id, outcome, queues_ms)
  local join, index = joins.key(id), joins.index()
  local found = redis.pcall('HMGET', join, '@start', '@size', '@keep', '@over', '@made', '@queues')
  redis.pcall('ZREM', index, id)
  if found.err or not found[2] then return end
  if book.on and not found[4] then book.record_group('group_decided', id, found[5], outcome or 'ended', '-') end
  redis.pcall('UNLINK', join)
  if queues_ms and found[6] then
    redis.pcall('HSET', join, '@size', found[2], '@sent', found[2], '@over', found[4] or '1', '@queues', found[6])
    redis.pcall('PEXPIRE', join, text(queues_ms))
  end
  if not found[1] or not found[3] then return end
  redis.pcall('HSET', join, '@start', found[1], '@size', found[2], '@sent', found[2], '@over', '1')
  redis.pcall('PEXPIRE', join, found[3])
end

-- A run has ended: its state is kept as long as its result, the flag r of `head`. A dead one has not ended: it can be
-- redriven. With a run, or a callback (flag h), the groups of calls end that were for it; `words` as of a result, or nil.
local function end_run(head, id, words)
  if string.find(head, ' h=', 1, true) then joins.finish(id) end
  if not string.find(head, ' c=', 1, true) then return end
  local keep_ms, run, runs = math.min(number_in(head, ' r=') or 0, MAX_KEEP_MS), run_key(id), runs_key()
  local its_groups = redis.pcall('HGET', run, '@joins')
  if type(its_groups) == 'string' then
    for group in string.gmatch(its_groups, '%S+') do joins.finish(group, nil, words == 'cancelled' and keep_ms or nil) end
  end
  redis.pcall('PEXPIRE', run, text(keep_ms))
  redis.pcall('ZREM', runs, id)
end

local function end_run_of(item, words)
  if kind(item) ~= 'own' or not has_flags(item) then return end
  local head = header(item)
  local id = string.match(head, '^([%w._-]+) ')
  if id and #id <= 64 then end_run(head, id, words) end
end

-- The words of a dead letter in a result.
local function dead_words(reason, class, words)
  return 'dead ' .. reason .. ' ' .. string.gsub(class, '%s', '_') .. '\n' .. string.sub(words, 1, 2048)
end

-- An item has ended without an ack and is no dead letter.
local function end_of(item, words)
  free_unique_of(item)
  if has_groups then groups().free_slot(item) end
  end_result(item, words)
  end_run_of(item, words)
end

-- A message that had ended waits again.
local function forget_result(head, id)
  tell_others(head, id, '')
  if not string.find(head, ' r=', 1, true) then return end
  local key = result_key(id)
  redis.pcall('DEL', key)
end
-- How a message ends, and how it goes back. Each function writes the destination; afterwards the caller removes the
-- message from where it was.

local REASON = '^[a-z_]+$'

-- Add to the dead letters; returns the reason as it was written. `class` and `words` tell the error, both may be ''.
-- A stream whose last id is the largest possible takes no more entries. The message then goes where it is never received
-- but easily found: to the delayed messages, with a due time that never comes.
local function bury(item, reason, class, words, now, amounts)
  if not string.find(reason, REASON) then reason = 'rejected' end
  local added = redis.pcall('XADD', dead, '*', 'envelope', item, 'reason', reason, 'class', class,
    'error', string.sub(words, 1, 2048), 'died_ms', text(now))
  if type(added) == 'table' then
    if not string.find(added.err, 'exhausted', 1, true) then error(added) end
    redis.call('ZADD', delayed, text(MAX_MS), item)
    end_result(item, dead_words(reason, class, words))
    amounts.unburied, amounts.stored, missed = (amounts.unburied or 0) + 1, (amounts.stored or 0) + 1, 1
    return reason
  end
  end_result(item, dead_words(reason, class, words))
  amounts.dead = (amounts.dead or 0) + 1
  -- With this counter, dead letters are read before they are dropped: their ends must be reported.
  if kind(item) == 'own' and has_flags(item) and string.find(header(item), ' [hi]=') then
    amounts.dead_of_groups = (amounts.dead_of_groups or 0) + 1
  end
  amounts['dead:' .. reason] = (amounts['dead:' .. reason] or 0) + 1
  return reason
end

-- Bury an item that is not one of our messages.
local function bury_foreign(item, about, now, amounts)
  bury(item, 'foreign', about.class or '', about.words or '', now, amounts)
  about.reason = 'foreign'
  record('dead', item, about)
end

-- 'expired', 'cancelled' or nil. `head` is the header of an own item, or only its flags if `id` is given; `tombstones`
-- says whether the queue has any.
local function over(head, now, tombstones, id)
  local expiry = number_in(head, ' x=')
  if expiry and (expiry <= now or not id and has_lost_key(head)) then return 'expired' end
  if tombstones then
    id = id or string.match(head, '^%S+')
    if id and redis.call('ZSCORE', cancelled, id) then
      redis.call('ZREM', cancelled, id)
      return 'cancelled'
    end
  end
  return nil
end

-- Places to put messages back, filled first and written at once: heads go to their old places, see lib/order.lua.
-- Unused levels are never read, so a message that asks for one goes to level 0. `order`: the old places of the heads.
local function places(levels)
  local used = {}
  for _, number in ipairs(levels) do used[number] = true end
  return { used = used, heads = {}, order = {}, tails = {}, suspects = {} }
end

local function put(to, list, number, item)
  if not to.used[number] then number = 0 end
  local items = list[number]
  if items then items[#items + 1] = item else list[number] = { item } end
end

-- Add an item to the heads, behind those that its lease has already added; returns its old place, in ms.
local function put_head(to, number, at_ms)
  if not to.used[number] then number = 0 end
  local items, order = to.heads[number], to.order[number]
  if not items then
    items, order = {}, {}
    to.heads[number], to.order[number] = items, order
  end
  local latest = order[#order]
  if latest and latest > at_ms then at_ms = latest end
  order[#order + 1] = at_ms
  return items, at_ms
end

local CHUNK = 500
-- `later`: what stands at the head by this very call was delivered before.
local function write_places(to, later)
  local rung = 0
  if has_groups then rung = groups().place_lists(to.heads, to.order, true) + groups().place_lists(to.tails, nil, false) end
  for number, items in pairs(to.heads) do
    push_heads(ready(number), items, to.order[number], later)
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

-- Whether a message must be delivered alone: it may have killed a worker.
local function is_suspect(message)
  return message ~= nil and (message.timeouts > 0 or message.shared >= 2)
end

-- A message of another version goes back unchanged: only consumers of that version can read its priority and counts.
local function leave_newer(to, list, item, amounts)
  put(to, list, 0, item)
  amounts.unsupported = (amounts.unsupported or 0) + 1
end

-- To its old place at the head of what is ready, or to the suspects whose one it is. `received`: when a plain message, which
-- does not know when it was sent, was delivered, in ms.
local function put_back(to, message, now, received)
  if is_suspect(message) then
    ready_from(message, now)
    local item = assemble(message)
    if has_groups then groups().keep_slot(item) end
    table.insert(to.suspects, item)
    return
  end
  local since = old_place(message, received)
  local items, at_ms = put_head(to, level_in(message.flags), since)
  ready_from(message, now)
  message.flags = message.flags .. ' o=' .. text(at_ms)
  items[#items + 1] = assemble(message)
end

-- A delivery without an outcome: the lease expired, or the worker died. A message that was alone in its lease
-- is to blame (timeouts); several share the blame, and from the second time on each goes to `suspect`, to be
-- delivered alone. `about.received`: when it was delivered, in ms as text, if that is known.
local function blame(message, alone, about, limit, to, now, amounts, delivered_ms)
  message.receives = message.receives + 1
  limit = number_in(message.flags, ' m=') or limit
  -- At most once (v=0): the consumer that lost it may have run it, so it does not run again.
  local once = flag_in(message.flags, ' v=') == '0'
  if about.received then with_flag(message, 'f', about.received) end
  if alone then message.timeouts = message.timeouts + 1 else message.shared = message.shared + 1 end
  if once or message.nacks + message.timeouts >= limit then
    local item = assemble(message)
    about.reason = bury(item, 'max_receives', '', '', now, amounts)
    free_unique_of(item)
    amounts.stored = (amounts.stored or 0) - 1
    record('dead', message.item, about)
  else
    put_back(to, message, now, delivered_ms or tonumber(about.received))
    about.reason = alone and 'alone' or 'shared'
    record('timed_out', message.item, about)
  end
end

-- Put back a message on its first delivery, with others and without flags; false for any other. After the loss of a host
-- most are like that, and rewriting their headers takes a third of the time.
local FRESH = '^(q1 [%w._-]+ (%d+)) 0 0 0 0()\n'
local function shared_first(item, about, to, now)
  local start, sent, at = string.match(item, FRESH)
  if not start or #start > MAX_ID or not about.received then return false end
  local sent_ms = tonumber(sent)
  local items, at_ms = put_head(to, 0, sent_ms)
  items[#items + 1] = start .. ' 1 0 0 1 f=' .. about.received .. ' t=' .. time_text(now)
    .. ' o=' .. (at_ms == sent_ms and sent or text(at_ms)) .. string.sub(item, at)
  return true
end

-- Decide about a message of a lease that is taken back: end it, or blame it and move it to one of the places. `about`
-- describes its delivery: lease, index, received. Returns true if the message was on its first delivery, with others.
local function take_back(item, about, limit, tombstones, to, now, amounts)
  if about.index ~= '0' and not tombstones and shared_first(item, about, to, now) then
    about.reason = 'shared'
    record('timed_out', item, about)
    return true
  end
  local message = delivered(item, about.lease, about.index, now)
  if not message and kind(item) == 'newer' then
    local items = put_head(to, 0, tonumber(about.received) or now)
    items[#items + 1] = item
    amounts.unsupported = (amounts.unsupported or 0) + 1
    return
  end
  local ended = message and kind(item) == 'own' and over(message.flags, now, tombstones, message.id)
  if message and not ended then
    blame(message, about.index == '0', about, limit, to, now, amounts)
    return
  end
  if ended then
    record(ended, item)
    end_of(item, ended)
    amounts[ended] = (amounts[ended] or 0) + 1
  else
    bury_foreign(item, {}, now, amounts)
  end
  amounts.stored = (amounts.stored or 0) - 1
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
local MAX_DUE_MS = 4503599627370495 -- 2^52 - 1: from there on scores of delayed messages are seats, see lib/groups.lua

-- The middle of the header of a new message: values that only the server knows.
local function stamp(now, ttl_ms, delay_ms)
  local middle = text(now) .. ' 0 0 0 0'
  if ttl_ms > 0 then middle = middle .. ' x=' .. text(math.min(now + ttl_ms, MAX_MS)) end
  if delay_ms > 0 then middle = middle .. ' t=' .. text(math.min(now + delay_ms, MAX_DUE_MS)) end
  return middle
end
-- Whether a user may do what a script is about to do. A right that is missing stops a script midway, and what it has done
-- stays; callers that repeat such a call would do it twice.

local denied
do
local may = {}

-- An error if the user may not run a command on a key, else nil. Asked once a call and command: all keys of a kind differ
-- in their end alone.
function denied(what, command, key, ...)
  if may[command] == nil then may[command] = redis.acl_check_cmd(command, key, ...) end
  if may[command] then return nil end
  return redis.error_reply('NOPERM this user may not write ' .. what .. '; write its rules again with qworker acl')
end
end
-- Count a message whose end is reported to others (flags i and j): a queue with such a count is read before it is removed.
local function note_awaited(tail, amounts)
  local stop = string.find(tail, '\n', 1, true)
  if string.find(string.sub(tail, 1, stop), ' [ij]=') then amounts.awaited = (amounts.awaited or 0) + 1 end
end
-- New messages that follow from others: they are stored even if the queue is full or paused.

-- Put a message into `to`, see lib/requeue.lua, or delay it. `new`: priority, delay_ms and ttl_ms (both '' for the queue's), head,
-- tail.
local function push_new(new, to, now, amounts)
  local defaults = to.defaults
  if not defaults then
    local found = redis.call('HMGET', meta, 'delay_ms', 'ttl_ms', 'levels')
    defaults = { delay_ms = whole(found[1], 0, MAX_MS) or 0, ttl_ms = whole(found[2], 0, MAX_MS) or 0, levels = found[3] or '' }
    to.defaults = defaults
  end
  local delay_ms = new.delay_ms ~= '' and whole(new.delay_ms, 0, MAX_MS) or defaults.delay_ms
  local ttl_ms = new.ttl_ms ~= '' and whole(new.ttl_ms, 0, MAX_MS) or defaults.ttl_ms
  local item = new.head .. stamp(now, ttl_ms, delay_ms) .. new.tail
  if book.all then record('sent', item) end
  note_awaited(new.tail, amounts)
  amounts.sent, amounts.stored = (amounts.sent or 0) + 1, (amounts.stored or 0) + 1
  if delay_ms > 0 then
    redis.call('ZADD', delayed, text(math.min(now + delay_ms, MAX_DUE_MS)), item)
    return
  end
  if not has_groups and string.find(new.tail, '^[^\n]* g=') and group_of(item) then
    groups().mark()
    has_groups = true
  end
  if not to.used[new.priority] then
    if not string.find(defaults.levels, text(new.priority), 1, true) then
      defaults.levels = defaults.levels .. text(new.priority)
      redis.call('HSET', meta, 'levels', defaults.levels)
    end
    to.used[new.priority] = true
  end
  put(to, to.tails, new.priority, item)
end
-- Effects of an ack: what else happens if, and only if, the ack counts. They are read before the first write, and applied
-- while the message is still in its lease, by the call that takes it out: a repeated call finds it gone, and a stale one
-- never finds it.
-- In ARGV each is its name and its words:
--   result   keep ms (1-2592000000), value      kept under the message's id, see lib/ends.lua
--   push     priority 0-9, delay ms, ttl ms ('' for the queue's, ttl 0 none), head `q1 <id> `, tail `[ k=v …]\n<body>`
--                                               a new message in this queue, also if that is paused or full
--   out      queue, then the words of a push    a new message in another queue, see lib/outbox.lua
--   member   queue or shard, group id, number, words   the end of a member of a group of calls, see gather.lua
--   open     queue, group id, spec              a group of calls whose callback is in that queue, see join.lua
--   end                                         nothing more: the script reads the message, whose values go, see lib/ends.lua

local MAX_EFFECTS = 1000
local read_effects, apply_effects
do
local EFFECTS = { result = 2, push = 5, out = 6, member = 4, open = 3, ['end'] = 0 } -- name → words
local QUEUE, SHARD, MAX_SPEC = '^[a-z0-9][a-z0-9._-]*$', '^[a-z0-9][a-z0-9._-]*/?%d*$', 8388608

-- The words of a new message from `at` on; nil if one is wrong.
local function read_new(effect, at)
  effect.priority, effect.head, effect.tail = whole(ARGV[at], 0, 9), ARGV[at + 3], ARGV[at + 4]
  effect.delay_ms, effect.ttl_ms = ARGV[at + 1], ARGV[at + 2]
  return effect.priority
    and (effect.delay_ms == '' or whole(effect.delay_ms, 0, MAX_MS)) and (effect.ttl_ms == '' or whole(effect.ttl_ms, 0, MAX_MS))
    and string.find(effect.head, '^q1 [%w._-]+ $') and #effect.head <= MAX_ID + 4 and string.find(effect.tail, '\n', 1, true)
end

local takes = {} -- the priorities whose lists were checked in this call

-- An error if a new message cannot be written, else nil.
local function refused_push(priority)
  local wrong = broken({ ready(priority), 'list' })
  local problem = wrong and redis.error_reply('WRONGTYPE ' .. wrong[2] .. ' is a ' .. wrong[3])
    or denied('messages', 'RPUSH', ready(priority), '') or denied('messages', 'ZADD', delayed, '0', '')
    or denied('messages', 'HSET', meta, 'levels', '')
  takes[priority] = not problem
  return problem
end

-- Read `number` effects; returns them and the position after them, or nil and what is wrong: the name of an
-- argument, or an error.
function read_effects(at, number)
  local effects = {}
  local function read(effect)
    if effect.name == 'result' then
      effect.keep_ms, effect.value = whole(ARGV[at + 1], 1, MAX_KEEP_MS), ARGV[at + 2]
      if not effect.keep_ms or #effect.value > MAX_RESULT then return 'result' end
      return denied('results', 'SET', result_key('0'), '')
    elseif effect.name == 'push' then
      if not read_new(effect, at + 1) then return 'push' end
      return not takes[effect.priority] and refused_push(effect.priority) or nil
    end
    if effect.name == 'end' then return end
    effect.queue = ARGV[at + 1]
    local named = string.find(effect.queue, effect.name == 'member' and SHARD or QUEUE) and #effect.queue <= 67
    if not named then return effect.name end
    if effect.name == 'member' then
      effect.group, effect.member, effect.words = ARGV[at + 2], whole(ARGV[at + 3], 0, MAX_MS), ARGV[at + 4]
      if not effect.member or not string.find(effect.group, '^[%w._-]+$') or #effect.words > MAX_RESULT then return 'member' end
    elseif effect.name == 'open' then
      effect.group, effect.spec = ARGV[at + 2], ARGV[at + 3]
      if not string.find(effect.group, '^[%w._-]+$') or #effect.spec > MAX_SPEC then return 'open' end
    elseif not read_new(effect, at + 2) then
      return 'out'
    end
    local outs, stream = outbox(effect.queue)
    local wrong = broken({ outs, 'hash', stream, 'stream' })
    return wrong and redis.error_reply('WRONGTYPE ' .. wrong[2] .. ' is a ' .. wrong[3])
      or denied('outboxes', 'XADD', stream, '1-0', 'h', '') or denied('outboxes', 'HSET', outs, 'h', '')
  end
  for i = 1, number do
    local effect = { name = ARGV[at] }
    local words = EFFECTS[effect.name]
    if not words or #ARGV < at + words then return nil, 'effect' end
    local problem = read(effect)
    if problem then return nil, problem end
    effects[i] = effect
    at = at + 1 + words
  end
  return effects, at
end

-- Apply the effects of the message `id`. New messages go to `to`, see lib/requeue.lua.
function apply_effects(effects, id, to, now, amounts)
  for _, effect in ipairs(effects) do
    if effect.name == 'result' then
      local key = result_key(id)
      redis.call('SET', key, effect.value, 'PX', text(effect.keep_ms))
      tell_waiting(key)
      amounts.results = (amounts.results or 0) + 1
    elseif effect.name == 'push' then
      push_new(effect, to, now, amounts)
    elseif effect.name == 'member' then
      send_out(effect.queue, id, { 'join', effect.group, 'member', text(effect.member), 'words', effect.words }, now)
    elseif effect.name == 'open' then
      send_out(effect.queue, id, { 'open', effect.group, 'spec', effect.spec }, now)
    elseif effect.name == 'out' then
      send_out(effect.queue, id, {
        'priority', text(effect.priority), 'delay', effect.delay_ms, 'ttl', effect.ttl_ms,
        'head', effect.head, 'tail', effect.tail,
      }, now)
    end
  end
end
end

-- Ack a message with effects, which the caller has found in its lease.
local function settle_kept(lease, other, index, item, to, now, amounts)
  local id = string.match(item, '^q1 ([%w._-]+) ')
  local head = id and has_flags(item) and header(item)
  local key = head and flag_in(head, ' u=')
  if key then free_unique(percent_decoded(key), id) end
  apply_effects(other.effects, id or lease.id .. '.' .. index, to, now, amounts)
  if head and #id <= 64 then end_run(head, id) end
  amounts.acked, amounts.stored = (amounts.acked or 0) + 1, (amounts.stored or 0) - 1
  if book.on then record('acked', item, { lease = lease.id, index = index, times = other.times }) end
end
-- Outcomes of received messages. In ARGV, from position `at`: the number of leases (their keys
-- stand from KEYS[21] on), and for each lease
--   acks     n, then n indices; or '*' for all that are left in the lease
--   uniques  n, then n × (index, unique key, message id): acks that free a unique key
--   others   n, then n × (kind, index, a, b, c, class, error, times)
--     n nack      a delay ms, b max receives of the task or '', c first received ms or ''
--                                                                 counted; dead at max receives
--     c crashed   b, c as of a nack                               it killed its worker: counted as a
--                                                                 lone timeout, delivered alone from now on
--     r release   a delay ms, b 1 or '', c unknown since ms or '' not counted, to the head; index '*' means
--                                                                 all that are left. With b: its handler had
--                                                                 started, so it counts as received once more. With
--                                                                 c: the worker lacks its task or key, see flag k
--     l limited   a ms 1-86400000, b 2 or ''                      as a release whose handler had started, and no
--                                                                 message of its group, or of the queue if it has none,
--                                                                 is delivered meanwhile. With b: none of its parent
--     s shared    -                                               the worker died, several ran
--     b bury      a reason                                        dead letter
--     p park      a delay ms or '' for ever, b -, c ms to keep a run's state that lacks flag c, or ''
--                 class `~<name>`, error `!<signal>` or ''        a run sleeps, or waits for a signal; not counted.
--                                                                 Its due time is recorded under that name, once
--     d discard   -                                               done, because the handler asked for it
--     k cancel    -                                               ended, because it was cancelled while it ran
--     t acked     a number of effects 1-1000                      an ack with effects, which follow these eight words:
--                                                                 see lib/effects.lua. It frees a unique key by itself
--   acked    n, then n × (number, group): the acks' journal groups, each of `number` events and at most 16 KiB.
--            0: the script reads the items itself, if the journal is on.
-- times describes a delivery for the journal: `<delivered_ms> <times> <task>`, `-` for an unknown value; or ''. For groups
-- and times see docs/protocol.md.

local function read_outcomes(at)
  local KINDS = 'ncrlsbdktp'
  local MAX_OUTCOMES, MAX_TIMES, MAX_LIMITED_MS = 10000, 512, 86400000
  local TIMES = '^[%d-]+ [%w+/=-]+ [%w_.:-]+$'
  local leases = {}
  local number = whole(ARGV[at], 0, 64)
  if not number or #KEYS < FIRST_LEASE + number - 1 then return nil, 'leases' end
  at = at + 1
  for l = 1, number do
    local lease = {
      key = KEYS[FIRST_LEASE + l - 1], all = ARGV[at] == '*', acks = {}, uniques = {}, others = {},
      told = {}, told_number = 0,
    }
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
    at = at + 1
    for i = 1, others do
      local from = at
      local other = {
        kind = ARGV[from], index = ARGV[from + 1], a = ARGV[from + 2], b = ARGV[from + 3],
        c = ARGV[from + 4], class = ARGV[from + 5], words = ARGV[from + 6], times = ARGV[from + 7],
      }
      if not other.times or #other.kind ~= 1 or not string.find(KINDS, other.kind, 1, true) then
        return nil, 'kind'
      end
      if other.kind == 'n' or other.kind == 'r' then
        other.delay_ms = whole(other.a, 0, MAX_MS)
        if not other.delay_ms then return nil, 'delay_ms' end
      end
      if other.kind == 'l' then
        other.delay_ms = whole(other.a, 1, MAX_LIMITED_MS)
        if not other.delay_ms then return nil, 'limit' end
      end
      if other.kind == 'p' then
        other.delay_ms = other.a == '' and MAX_MS or whole(other.a, 0, MAX_MS)
        local known = string.find(other.class, '^~[^%s]+$') and string.find(other.words, '^!?[^%s]*$')
        if not other.delay_ms or not known or #other.class > 128 or #other.words > 128 then return nil, 'park' end
      end
      if other.b ~= '' and not whole(other.b, 1, 999999) then return nil, 'max receives' end
      if other.c ~= '' and not whole(other.c, 0, MAX_MS) then return nil, 'first received' end
      if other.times ~= '' and (#other.times > MAX_TIMES or not string.find(other.times, TIMES)) then return nil, 'times' end
      at = at + 8
      if other.kind == 't' then
        local effects, after = read_effects(at, whole(other.a, 1, MAX_EFFECTS) or 0)
        if not effects or #effects == 0 then return nil, effects and 'effects' or after end
        other.effects, at = effects, after
      end
      lease.others[i] = other
    end
    local groups = whole(ARGV[at], 0, MAX_OUTCOMES)
    if not groups then return nil, 'acked' end
    for i = 1, groups do
      local told, group = whole(ARGV[at + 2 * i - 1], 1, MAX_OUTCOMES), ARGV[at + 2 * i]
      if not told or not group or #group > MAX_GROUPS then return nil, 'acked' end
      lease.told[i] = { number = told, text = group }
      lease.told_number = lease.told_number + told
    end
    at = at + groups * 2 + 1
    leases[l] = lease
  end
  return leases, at
end
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
-- Apply the outcomes that lib/outcomes.lua read.

-- Acks without journal groups of the caller are recorded by the script, which reads the items before it deletes them.
local function reads_acks(lease)
  return book.on and not book.shed and lease.told_number == 0
end

local function record_held(lease, index)
  local item = redis.call('HGET', lease.key, index)
  if item then record('acked', item, { lease = lease.id, index = index }) end
end

-- The caller's groups are used if all of their acks counted. If only some did, `results` says which; times belong to
-- the whole group, so they are left out then.
local function record_told(lease, acked, results, at)
  if lease.told_number == acked or book.shed then
    for _, group in ipairs(lease.told) do book.add_group(group.text, group.number) end
    book.events = book.events + acked - lease.told_number
  elseif results and not lease.all then
    for _, group in ipairs(lease.told) do
      local first = string.gsub(string.match(group.text, '^[^\n]*'), '^(%S+ %S+) %S+', '%1 -')
      for header in string.gmatch(group.text, '\nq1 ([^\n]*)') do
        if results[at] == 1 then book.add_row(first, header) end
        at = at + 1
      end
    end
  else
    book.add_row(string.format('unsure - - - %d_of_%d -', acked, lease.told_number), book.header_of(''))
  end
end

local function settle_ack(lease, results)
  local acked, reads = 0, reads_acks(lease)
  for _, it in ipairs(lease.uniques) do
    if reads then record_held(lease, it[1]) end
    local held = redis.call('HDEL', lease.key, it[1])
    if held == 1 then free_unique(it[2], it[3]) end
    if has_groups then groups().vacate(lease.id .. ':' .. it[1]) end
    acked = acked + held
    if results then results[#results + 1] = held end
  end
  if has_groups then groups().vacate_all(lease.id, lease.acks) end
  if results or reads then
    for _, index in ipairs(lease.acks) do
      if reads then record_held(lease, index) end
      local held = redis.call('HDEL', lease.key, index)
      acked = acked + held
      if results then results[#results + 1] = held end
    end
  else
    acked = acked + take_out_of(lease.key, lease.acks)
  end
  return acked
end

-- The number of acked messages if they are a complete batch, each acked once: the same as '*'.
local function whole_batch(lease)
  local number, seen = #lease.acks, {}
  if number < 2 or #lease.uniques + #lease.others > 0 or batch_size(lease.key) ~= number then return nil end
  for _, index in ipairs(lease.acks) do
    index = whole(index, 1, number)
    if not index or seen[index] then return nil end
    seen[index] = true
  end
  return number
end

-- Free the slots of all that is left in a lease; its items are not read.
local function free_slots(lease)
  if groups().vacate_batch(lease.id) then return end
  local size, indices = redis.call('HLEN', lease.key) == 1 and batch_size(lease.key), {}
  for i = 1, size or 0 do indices[i] = i end
  groups().vacate_all(lease.id, size and indices or redis.call('HKEYS', lease.key))
end

local function ack_rest(lease, acked)
  if has_groups then free_slots(lease) end
  if reads_acks(lease) then
    for _, entry in ipairs(read_lease(lease.key)) do
      record('acked', entry[2], { lease = lease.id, index = entry[3] })
    end
  end
  redis.call('DEL', lease.key)
  return acked
end

-- Apply what `read_outcomes` read. Returns the number of messages settled per lease; `results`,
-- where given, gets 1 or 0 per outcome in the order uniques, acks, others.
local function settle(leases, attributes, results, now, amounts)
  local settled, rung, grouped = {}, 0, has_groups
  if grouped then groups().begin() end
  for l, lease in ipairs(leases) do
    local first = results and #results + 1
    local acked, held, stale = 0, 0, 0
    local batch = not lease.all and whole_batch(lease)
    if batch then
      for _ = 1, results and batch or 0 do results[#results + 1] = 1 end
      lease.all, lease.acks = true, {}
    end
    if #lease.acks + #lease.uniques + #lease.others > 0 then
      loosen(lease.key)
      acked = settle_ack(lease, results)
      local moved, missed, ready_again = settle_others(lease, attributes, results, l > 1, now, amounts)
      held, rung = acked + moved, rung + ready_again
      stale = #lease.acks + #lease.uniques - acked + missed
    end
    if lease.all then
      local rest = ack_rest(lease, batch or count_held(lease.key))
      acked, held = acked + rest, held + rest
    end
    if book.on and acked > 0 and not reads_acks(lease) then record_told(lease, acked, results, first) end
    amounts.acked = (amounts.acked or 0) + acked
    amounts.stored = (amounts.stored or 0) - acked
    if lease.all or redis.call('EXISTS', lease.key) == 0 then redis.call('ZREM', unacked, lease.id) end
    amounts.unacked = (amounts.unacked or 0) - held
    amounts.stale = (amounts.stale or 0) + stale
    settled[l] = held
  end
  if grouped then groups().finish() end
  if has_groups then rung = rung + groups().opened end
  return settled, rung
end
-- What may run, by its virtual time; the name of messages without a group is ''. Those that come in their order stand in two
-- rows, of those that are read and of those that come back, where the first one leaves at no cost; the others are in a heap.
local function new_line()
  local row, at, first, first_tag = {}, 1, nil, nil
  local back, from, to = {}, 1, 0
  local heap, size = {}, 0
  local function precedes(tag, name, other_tag, other) return tag < other_tag or tag == other_tag and name < other end
  local function before(a, tag, name) return precedes(a.tag, a.name, tag, name) end

  local function leave_heap()
    local top, last, hole = heap[1], heap[size], 1
    heap[size] = nil
    size = size - 1
    while size > 0 do
      local child = 2 * hole
      if child < size and before(heap[child + 1], heap[child].tag, heap[child].name) then child = child + 1 end
      if child > size or not before(heap[child], last.tag, last.name) then
        heap[hole] = last
        break
      end
      heap[hole], hole = heap[child], child
    end
    return top.name, top.tag
  end

  return {
    -- Remove the one that is next; returns its name and tag, or nil.
    take = function()
      if not first then
        first = row[at]
        first_tag = first and tonumber(row[at + 1])
      end
      local name, tag, is_back = first, first_tag, false
      if from < to and (not name or precedes(back[from + 1], back[from], tag, name)) then
        name, tag, is_back = back[from], back[from + 1], true
      end
      if size > 0 and (not name or before(heap[1], tag, name)) then return leave_heap() end
      if is_back then
        from = from + 2
      elseif name then
        at, first = at + 2, nil
      end
      return name, tag
    end,
    -- Add those that come after all others that were appended: {name, tag, …}, in order.
    append = function(more)
      if at > #row then
        row, at = more, 1
      else
        for i = 1, #more do row[#row + 1] = more[i] end
      end
    end,
    add = function(name, tag)
      if from > to or not precedes(tag, name, back[to], back[to - 1]) then
        back[to + 1], back[to + 2] = name, tag
        to = to + 2
        return
      end
      size = size + 1
      local hole, above = size, math.floor(size / 2)
      while hole > 1 and not before(heap[above], tag, name) do
        heap[hole], hole, above = heap[above], above, math.floor(above / 2)
      end
      heap[hole] = { tag = tag, name = name }
    end,
    -- Those that came back and still stand: {tag, name, …}.
    returned = function()
      local all = {}
      local function note(tag, name)
        if name ~= '' then all[#all + 1], all[#all + 2] = tag, name end
      end
      for i = from, to, 2 do note(back[i + 1], back[i]) end
      for i = 1, size do note(heap[i].tag, heap[i].name) end
      return all
    end,
  }
end
-- Parts of a receive from a queue with groups, see lib/turns.lua.

-- A script has at most 200 local names, so these are fields of one.
local turns = {}
do
-- The groups of the parents that are next, read a few at a time. Where they stand is written at the end.
function turns.families(it)
  local families, moved, left = {}, {}, {}
  local self = {}

  -- The group of a parent whose turn it is, or nil. Those that joined again come after all that stand in the store.
  function self.first(parent)
    local family = families[parent]
    if not family then
      family = { stored = {}, at = 1, most = 1, joined = {}, next = 1 }
      families[parent] = family
    end
    if family.most and family.at > #family.stored then
      local more = it.first_children(parent, family.at - 1, family.most)
      for _, name in ipairs(more) do table.insert(family.stored, name) end
      family.most = #more == family.most and math.min(2 * family.most, 64) or nil
    end
    return family.stored[family.at] or family.joined[family.next]
  end

  -- The first one has had its turn, and stands at the end or not.
  function self.move(parent, name, stays)
    local family, one, above = families[parent], it.record(name), it.record(parent)
    if family.stored[family.at] then family.at = family.at + 1 else family.next = family.next + 1 end
    if not moved[name] then
      if one.turn > 0 then left[#left + 1] = it.line_of(parent, one.turn, name) end
      moved[name] = true
    end
    one.turn = 0
    if not stays then return end
    above.turn = above.turn + 1
    one.turn = above.turn
    table.insert(family.joined, name)
  end

  function self.write()
    local joined = {}
    for name in pairs(moved) do
      local one = it.record(name)
      if one.turn > 0 then joined[#joined + 1], joined[#joined + 2] = 0, it.line_of(one.parent, one.turn, name) end
    end
    it.write_lines({ left = left, joined = joined })
  end
  return self
end

-- Put the members that were taken into the batch, and messages without a group into the places that are theirs.
function turns.mix(batch, taken, items, heads, plain, read_plain)
  if plain == 0 then
    batch.items, batch.heads, batch.number = items, heads, #items
    return
  end
  read_plain(plain)
  local names, plain_items, plain_heads, at, number = taken.names, batch.items, batch.heads, 0, 0
  batch.items, batch.heads, taken.names = {}, {}, {}
  for i, item in ipairs(items) do
    local head = heads[i]
    if not item then
      at = at + 1
      item, head = plain_items[at], plain_heads[at]
    end
    if item then
      number = number + 1
      batch.items[number], batch.heads[number], taken.names[number] = item, head, names[i]
    end
  end
  batch.number = number
end

-- What each message that waited was waiting for, as far as the limits tell now that it is taken: the one that its group is
-- at, or else that of its parent, or its turn.
local SHORT_MS = 100
function turns.reasons(heads, names, now)
  local it, reasons = groups(), {}
  local function limit_of(name, prefix)
    local one, limit = it.record(name), it.limit(name)
    if one.busy >= limit.concurrency then return prefix .. 'concurrency' end
    return (limit.every_ms or one.wait_ms > 0) and it.waits(name, now) and prefix .. 'rate'
  end
  for i, head in ipairs(heads) do
    local name = names[i] and it.name_of(names[i])
    local since_ms = name and (number_in(head, ' t=') or tonumber(string.match(head, '^%S+ (%d+)')))
    reasons[i] = false
    if since_ms and now - since_ms >= SHORT_MS then
      local parent = it.parent_of(name)
      reasons[i] = limit_of(name, '') or parent and limit_of(parent, 'parent_') or 'turn'
    end
  end
  return reasons
end

-- Suspects stand in one list, but wait for the rates of their groups as others do. Those that must wait go behind the others, a
-- few a call; `suspects_ms` in meta is when to look again, soon enough for those behind them.
local LOOKS, LOOK_BYTES, LOOK_MS = 8, 1048576, 1000

-- Until when none of them is received, nil if one may be. A time that is further away is of before the clock was set back.
function turns.suspects_wait(now)
  local until_ms = tonumber(redis.call('HGET', meta, 'suspects_ms')) or 0
  return until_ms > now and until_ms <= now + LOOK_MS and until_ms or nil
end

-- Whether a suspect may run as far as slots go: it has kept that of its group.
local function has_slots(it, item, name)
  local slots, parent = it.slots, it.parent_of(name)
  local slot = redis.call('HGET', slots, ':' .. it.id_of(item))
  return not slot or string.byte(slot) ~= 2 or it.is_open(parent)
end

-- It must wait: until it may run, others can have the slot of its parent.
local function give_up_parent(it, item, name)
  local slots, token = it.slots, ':' .. it.id_of(item)
  if redis.call('HGET', slots, token) ~= name then return end
  it.vacate(token)
  it.occupy(token, name, true)
end

-- The next suspect that may run, now at the head of the list, or nil.
function turns.next_suspect(now)
  local it, most, soonest, bytes = groups(), math.min(redis.call('LLEN', suspect), LOOKS), now + LOOK_MS, 0
  if most == 0 or turns.suspects_wait(now) then return nil end
  for _ = 1, most do
    local item = redis.call('LINDEX', suspect, 0)
    local name = group_of(item)
    local parent = name and it.parent_of(name)
    local until_ms = name and math.max(it.waits(name, now) or 0, parent and it.waits(parent, now) or 0) or 0
    if until_ms <= now and (not name or has_slots(it, item, name)) then return item end
    give_up_parent(it, item, name)
    redis.call('RPUSH', suspect, item)
    redis.call('LTRIM', suspect, 1, -1)
    soonest, bytes = until_ms > now and math.min(soonest, until_ms) or soonest, bytes + #item
    if bytes >= LOOK_BYTES then break end
  end
  redis.call('HSET', meta, 'suspects_ms', text(soonest))
  return nil
end

-- The usual way, see lib/even_turns.lua. Returns what `write` needs; nil, with nothing changed, if this call needs the other way.
function turns.take_each(it, batch, bounds, now)
  if bounds.count == 0 or book.all or not it.are_unlimited() then return nil end
  local even = even_turns(it.states, it.turns, it.slots, it.stored)
  local line, FIRST_SEAT = it.turns, 4503599627370496 -- see lib/group_members.lua
  local standing = redis.call('ZCARD', line)
  -- Of fewer groups than messages are asked for, one that has more would have a second turn.
  if standing < bounds.count and redis.call('ZCOUNT', delayed, FIRST_SEAT, '+inf') > standing then return nil end
  local function may_take(item) return not over(header(item), now) end
  local turn = even.read(it.tags().queue, standing, bounds.count, bounds.bytes, may_take)
  if not turn or batch.tombstones and marked_in(turn.items, cancelled) then return nil end
  for _, item in ipairs(turn.flagged) do start_unique(header(item)) end
  for i = 1, next(it.records) and #turn.names or 0 do it.records[turn.names[i]] = nil end -- as they were before
  batch.items, batch.heads, batch.number, batch.bytes = turn.items, turn.items, #turn.items, turn.bytes
  return { members = #turn.items, write = function(lease_id) even.write(turn, lease_id, it.tags()) end }
end
end
-- A receive from a queue with groups: who is next, message by message. See lib/groups.lua.

do
local MAX_READ = 8 -- members that are read at once
local MAX_TAKEN = 500 -- messages: a call with twice as many keeps others waiting for 20 ms
local SHORT = 4096 -- bytes of a message that is searched whole: to cut off its header takes longer
local SLASH, ORDERED = 47, 61 -- /=
local byte = string.byte

-- Fill the batch. `bounds`: count, steps, bytes. `waiting`: messages without a group; `read_plain(number)` reads so many of
-- them into the batch. Returns what `write` needs once the lease is written.
function turns.take(batch, bounds, waiting, read_plain, now, amounts)
  local it, line, read = groups(), new_line(), {}
  bounds.count = math.min(bounds.count, MAX_TAKEN)
  it.come_back(now)
  local each = waiting == 0 and turns.take_each(it, batch, bounds, now)
  if each then return each end
  it.begin()
  local families = turns.families(it)
  local taken = { names = {}, members = 0, gone = {}, left = {}, emptied = {}, families = families, line = line }
  local gone, left, emptied = taken.gone, taken.left, taken.emptied
  local tags, records, window_end = it.tags(), it.records, 0
  local unlimited = it.are_unlimited()
  local tombstones, spare = batch.tombstones, 0 -- how many stand in line beyond those that the batch needs

  -- Let the next `most` of all that may run stand in line: later ones have larger tags.
  local function widen(most)
    local window, names = it.window(window_end, most), {}
    taken.window = taken.window or window
    for i = 1, #window, 2 do names[#names + 1] = window[i] end
    line.append(window)
    spare = spare + #names
    it.read_many(names)
    window_end = #names == most and window_end + most or nil
  end
  widen(bounds.count)
  spare = 0
  if waiting > 0 then line.add('', math.max(tags.plain, tags.queue)) else tags.plain = 0 end

  local items, heads, names, plain, number, steps, full = {}, {}, taken.names, 0, 0, 0, false

  -- The next waiting member of a group, and its seat if that is not the next one; nil without one. From the second turn on, a
  -- few are read at once.
  local function next_member(name, one)
    local found = read[name]
    if not found then
      read[name] = 1
      return it.next_member(one)
    end
    if found == 1 or found.at > #found then
      local most = found == 1 and 2 or math.min(2 * found.most, MAX_READ)
      found = it.members(one, most)
      found.most, found.at = most, 1
      read[name] = found
    end
    found.at = found.at + 2
    return found[found.at - 2], found[found.at - 1]
  end

  -- Take or end the next member of a group. True if one was taken, nil if it has none, and as the second value true if one has
  -- ended. Without a `limit` nothing limits the
  -- group, now or while the member is in flight: it takes a turn and is not counted.
  local function take_member(name, one, limit)
    local item, seat = next_member(name, one)
    if not item then
      it.drop_number(one)
      return nil
    end
    local bytes, head = batch.bytes + #item, item
    if bytes > bounds.bytes and bytes > #item then
      full = true
      return false
    end
    if seat then it.pass(one, seat) else one.first = one.first + 1 end
    if one.first > one.last then it.drop_number(one) end
    batch.bytes = bytes
    gone[#gone + 1] = item
    local searched = #item < SHORT and item or header(item)
    if book.all or tombstones or find(searched, ' x=', 1, true) or find(searched, ' u=', 1, true) then
      head = header(item)
      local ended = over(head, now, tombstones)
      if ended and parse(item) then
        record(ended, item)
        end_of(item, ended)
        amounts[ended] = (amounts[ended] or 0) + 1
        amounts.stored = (amounts.stored or 0) - 1
        it.skip(one)
        return false, true
      end
      start_unique(head)
    end
    number, taken.members = number + 1, taken.members + 1
    items[number], heads[number] = item, head
    if limit then
      it.spend(name, one, limit, now)
      names[number] = name
    else
      local tag, from = one.tag, tags.queue
      one.tag = (tag > from and tag or from) + 1
      names[number] = '\1' .. name
      if not one.number and one.busy == 0 then emptied[#emptied + 1] = name end
    end
    return true
  end

  -- The time in ms until when a group or parent must wait, nil if it may run now.
  local function waits(name, one, limit)
    return (limit.every_ms or one.wait_ms > 0 or one.rate_ms > 0) and it.waits(name, now) or nil
  end

  -- One turn of a parent; returns whether it stays in line.
  local function turn_of_parent(name, one, limit)
    local group = families.first(name)
    if group then
      local own, cap = it.record(group), it.limit(group)
      it.write(group, own)
      local is_open = own.busy < cap.concurrency
      local until_ms = is_open and waits(group, own, cap)
      if until_ms then
        it.put_later(group, until_ms)
      elseif is_open then
        local given, has_ended = take_member(group, own, cap)
        if given then it.spend(name, one, limit, now) elseif has_ended then it.skip(one) end
      end
      if full then return true end
      families.move(name, group, not until_ms and own.number and own.busy < cap.concurrency)
      if families.first(name) then return one.busy < limit.concurrency end
    end
    one.turn = 0
    return false
  end

  -- One turn of a group or parent; returns whether it stays in line.
  local function turn(name, one)
    it.write(name, one)
    if unlimited and not one.parent and one.wait_ms == 0 and one.rate_ms == 0 and byte(name) ~= ORDERED and byte(name, -1) ~= SLASH then
      take_member(name, one, nil)
      return one.number
    end
    local limit = it.limit(name)
    if one.busy >= limit.concurrency then return false end
    local until_ms = waits(name, one, limit)
    if until_ms then
      it.put_later(name, until_ms)
      return false
    end
    if byte(name, -1) == SLASH then return turn_of_parent(name, one, limit) end
    take_member(name, one, limit)
    return one.number and one.busy < limit.concurrency
  end

  while number < bounds.count and steps < bounds.steps and batch.bytes < bounds.bytes and not full do
    local name, tag = line.take()
    if not name then break end
    steps = steps + 1
    if tag > tags.queue then tags.queue = tag end
    if name == '' then
      plain, number, waiting = plain + 1, number + 1, waiting - 1
      items[number], names[number] = false, false
      tags.plain = tag + 1
      if waiting > 0 then line.add('', tags.plain) end
    else
      local before, one = number, records[name]
      if turn(name, one) then
        line.add(name, one.tag > tag and one.tag or tag)
      else
        left[#left + 1] = name
      end
      if number == before and window_end then
        -- It gave nothing: another one is needed.
        if spare == 0 then widen(math.min(window_end, 64)) end
        spare = spare - 1
      end
    end
  end
  turns.mix(batch, taken, items, heads, plain, read_plain)
  return taken
end

-- Write what a receive has changed; the lease is written.
function turns.write(lease_id, batch, taken, now)
  local it = groups()
  if taken and taken.write then
    taken.write(lease_id)
  elseif taken then
    if taken.members > 0 then it.stored.hold(it.slots, lease_id, taken.names, '') end
    it.in_parts('ZREM', delayed, taken.gone)
    local left = it.leave_first(taken.left, taken.window)
    taken.families.write()
    if #taken.emptied > 0 then it.stored.note_recent(it.tags(), taken.emptied) end
    it.finish()
    it.set_turns(taken.line.returned(), taken.left, left)
    it.write_tags()
  end
  if #batch.items == 1 and not (taken and taken.members > 0) then it.occupy_all(lease_id, batch.items, now) end -- a suspect
end
end
-- Deliver up to `count` items of the queue in one new lease.

local MAX_BYTES = 1048576 -- a batch ends at its count or at this size
local NONE = {}
local SPARE = 256 -- items that may be read beyond `count` (expired, cancelled, foreign …)

-- Decide about one item at the head: take it, end it, or (newer version) move it behind the others,
-- for consumers of that version.
local function take(item, level_number, marked, batch, to, now, amounts)
  local what, head = kind(item), nil
  batch.bytes = batch.bytes + #item
  if what == 'own' then
    head = header(item)
    local ended = over(head, now, marked)
    if ended and parse(item) then
      record(ended, item)
      end_of(item, ended)
      amounts[ended] = (amounts[ended] or 0) + 1
      amounts.stored = (amounts.stored or 0) - 1
      return
    end
    local name = level_number and string.find(head, ' g=', 1, true) and group_of(item)
    if name then
      -- It came to this list by a call that does not know groups, or whose queue had none.
      if not has_groups then
        groups().mark()
        has_groups = true
      end
      if groups().place(item, name, string.find(head, ' o=', 1, true) ~= nil) then return end
    end
    start_unique(head)
  elseif what == 'newer' then
    put(to, to.tails, level_number or 0, item)
    amounts.unsupported = (amounts.unsupported or 0) + 1
    return
  elseif what == 'foreign' then
    bury_foreign(item, {}, now, amounts)
    return
  else
    amounts.stored = (amounts.stored or 0) + 1 -- plain: counted when first seen
    batch.plain = true
  end
  batch.number = batch.number + 1
  batch.items[batch.number], batch.heads[batch.number] = item, head or item
end

-- The next suspect, nil if there is none or all that were looked at wait for the rates of their groups.
local function next_suspect(now)
  if has_groups then return turns.next_suspect(now) end
  return redis.call('LINDEX', suspect, 0) or nil
end

-- How many suspects may be received.
local function suspects_left(now)
  local number = redis.call('LLEN', suspect)
  return number > 0 and has_groups and turns.suspects_wait(now) and 0 or number
end

local function ready_left(levels, now)
  local left = now and suspects_left(now) or 0
  for _, number in ipairs(levels) do left = left + redis.call('LLEN', ready(number)) end
  return left
end

-- Read one level into the batch; the items read are trimmed from its head afterwards. Items that a bound leaves behind
-- come before the levels below, so `batch.ended` keeps those out.
local function read_level(number, batch, count, to, now, amounts)
  local seen, before = 0, batch.bytes
  while batch.number < count and batch.bytes < MAX_BYTES and seen < count + SPARE do
    local chunk = redis.call('LRANGE', ready(number), seen,
      seen + math.min(chunk_size(seen, batch.bytes - before, MAX_BYTES - batch.bytes), count - batch.number) - 1)
    if #chunk == 0 then break end
    local marked = batch.tombstones and marked_in(chunk, cancelled) or NONE
    for i = 1, #chunk do
      local item = chunk[i]
      if batch.bytes > 0 and batch.bytes + #item > MAX_BYTES then
        batch.ended = true
        return seen
      end
      -- Without flags and tombstones, as usual, no item can be expired or cancelled.
      if not marked[i] and kind(item) == 'own' and not has_flags(item) then
        batch.bytes, batch.number = batch.bytes + #item, batch.number + 1
        batch.items[batch.number] = item
        if book.all then batch.heads[batch.number] = header(item) end
      else
        take(item, number, marked[i], batch, to, now, amounts)
      end
      seen = seen + 1
    end
  end
  batch.ended = seen >= count + SPARE
  return seen
end

-- hint_ms: -1 paused · 0 more is ready now · n nothing is until the next delayed message is due, or the queue is no longer rate
-- limited, in n ms · -2 nothing known
local function hint(left, received, now)
  if left > 0 then return 0 end
  if received > 0 then return -2 end
  local next_due = tonumber(redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2])
  if has_groups then
    -- Members wait for others of their group, or for a time of their own.
    if next_due and groups().is_seat(next_due) then next_due = nil end
    local later, suspects_ms = groups().next_later(), turns.suspects_wait(now)
    if later then next_due = math.min(next_due or later, later) end
    if suspects_ms then next_due = math.min(next_due or suspects_ms, suspects_ms) end
  end
  return next_due and math.max(1, next_due - now) or -2
end

-- request: key, id, count, visibility_ms, suspects (0 never, 1 when nothing else is ready, 2 first)
-- Returns items, deadline ms, ready left, hint ms, suspect 1 or 0.
local function receive(request, attributes, levels, now, amounts)
  if attributes.paused_out then return {}, 0, 0, -1, 0 end
  if limited_ms then
    if limited_ms > now then
      local until_ms = set_back(limited_ms, redis.call('HGET', meta, 'limited_ms'), now)
      if until_ms < limited_ms then
        limited_ms = until_ms
        redis.call('HSET', meta, 'paused', 'until ' .. text(limited_ms), 'limited_ms', text(now))
      end
      return {}, 0, 0, math.max(1, limited_ms - now), 0
    end
    redis.call('HDEL', meta, 'paused', 'limited_ms')
  end
  local first_lease = redis.call('ZCARD', unacked) == 0
  local batch = { items = {}, heads = {}, number = 0, bytes = 0, tombstones = redis.call('EXISTS', cancelled) == 1 }
  local to, cut, members = places(levels), {}, nil
  local lone = request.suspects == 2 and next_suspect(now)
  if not lone then
    if has_groups then
      local function read_plain(number)
        for _, each in ipairs(levels) do
          cut[each] = read_level(each, batch, number, to, now, amounts)
          if batch.ended then break end
        end
      end
      local bounds = { count = request.count, steps = request.count + SPARE, bytes = MAX_BYTES }
      members = turns.take(batch, bounds, ready_left(levels), read_plain, now, amounts)
    else
      for _, number in ipairs(levels) do
        cut[number] = read_level(number, batch, request.count, to, now, amounts)
        if batch.ended then break end
      end
    end
    if #batch.items == 0 and request.suspects == 1 then lone = next_suspect(now) end
  end
  local from_suspect = 0
  if lone then
    take(lone, nil, batch.tombstones, batch, to, now, amounts)
    from_suspect = 1
  end
  local deadline = now + request.visibility_ms
  if #batch.items > 0 then
    write_items(request.key, batch.items)
    redis.call('ZADD', unacked, text(deadline), request.id)
  end
  if book.all then
    book.record_delivered(batch.heads, request.id, batch.plain, members and turns.reasons(batch.heads, members.names, now))
  end
  local behind = write_places(to)
  for number, seen in pairs(cut) do
    if seen > 0 then redis.call('LTRIM', ready(number), seen, -1) end
  end
  if from_suspect > 0 then redis.call('LTRIM', suspect, 1, -1) end -- a pop would return the body
  if has_groups then turns.write(request.id, batch, members, now) end
  -- The reaper's watch for gaps starts with the first lease; see grace.lua.
  if first_lease and #batch.items > 0 then redis.call('HSET', stats, 'reaped_ms', text(now)) end
  amounts.received = (amounts.received or 0) + #batch.items
  amounts.unacked = (amounts.unacked or 0) + #batch.items
  -- Left: what this caller could receive, so not the items it has just moved behind the others.
  local left = math.max(0, ready_left(levels, request.suspects > 0 and now) - behind)
  if has_groups then left = left + groups().running(now) end
  return batch.items, deadline, left, hint(left, #batch.items, now), from_suspect
end

-- The content of a lease, for a caller that never saw the reply of the call that made it.
-- Returns items, deadline ms, indices, suspect 1 or 0.
local function resume(request)
  local deadline = redis.call('ZSCORE', unacked, request.id)
  local items, indices, lone = {}, {}, 0
  if deadline then
    for i, entry in ipairs(read_lease(request.key)) do
      items[i], indices[i] = entry[2], tostring(entry[3])
    end
  end
  if indices[1] == '0' and is_suspect(parse(items[1])) then lone = 1 end
  return items, tonumber(deadline) or 0, indices, lone
end

local request = {
  key = KEYS[#KEYS], id = lease_id(KEYS[#KEYS]), count = whole(ARGV[3], 0, 1000),
  suspects = whole(ARGV[5], 0, 2),
}
local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(attributes.levels)
if refused then return refused end
local now = clock(ARGV[1], meta)
request.visibility_ms = ARGV[4] == '' and attributes.visibility_ms or whole(ARGV[4], 1, MAX_VISIBILITY_MS)
if not now or not request.id or not request.count or not request.suspects or not request.visibility_ms then
  return { 'ARG', 'request' }
end
local leases, problem = read_outcomes(7)
if not leases then return problem.err and problem or { 'ARG', problem } end
local resumed = ARGV[2] == '1'
if not resumed and request.count > 0 and redis.call('EXISTS', request.key) == 1 then
  return { 'LEASEUSED', request.id }
end

open_journal(attributes.journal, now)
local amounts = {}
local settled, rung = settle(leases, attributes, nil, now, amounts)
local items, deadline, left, hint_ms, lone, indices = {}, 0, 0, -2, 0, {}
local waiting = rung
if resumed then
  items, deadline, indices, lone = resume(request)
elseif request.count > 0 then
  items, deadline, left, hint_ms, lone = receive(request, attributes, attributes.levels, now, amounts)
  -- A suspect that this call returned wakes consumers that may take it, even if this caller may not.
  waiting = left == 0 and rung > 0 and redis.call('LLEN', suspect) > 0 and rung or left
end
local suspects_left = suspects_left(now)
if not attributes.paused_out then
  if waiting > 0 then
    ring(wake, waiting)
  elseif ARGV[6] ~= '' and #items > 0 and not resumed and suspects_left == 0 and not amounts.unsupported then
    -- Nothing is left: tokens for messages already taken would wake workers in vain, one after another. Without
    -- waiting workers, the next send rings again.
    redis.pcall('DEL', wake)
  end
end
local degraded = math.max(count(stats, amounts), write_journal(ARGV[6]))
local reply = { 'OK', text(now), text(deadline), left, text(hint_ms), lone, degraded, settled, items, indices,
  suspects_left, book.on and not book.shed and 1 or 0 }
if has_groups then
  local until_ms = groups().next_later()
  reply[13] = until_ms and math.min(math.max(1, until_ms - now), MAX_VISIBILITY_MS) or 0
end
return reply
