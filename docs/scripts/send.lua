#!lua
-- send.lua: store new messages once, even if the call is repeated.
-- ROLES      producer, operator
-- KEYS[1-5]  see lib/sender_keys.lua
-- KEYS[6]    producers HASH   lane → last sequence number, ms, and (message number, id) per message kept out by it; the
--                             first lanes of a queue are in stats as `lane:<lane>`, where they are read with the counters
-- KEYS[7]    unique HASH      see lib/unique_keys.lua
-- KEYS[8]    journal STREAM
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    lane             '' for a one-shot sender, which must not repeat the call
-- ARGV[3]    sequence         number of this call on its lane
-- ARGV[4]    delay ms         '' for the queue's, or '@' and a due time in ms since 1970
-- ARGV[5-6]  ttl ms, priority '' for the queue's, 0 none; 0-9
-- ARGV[7]    n                messages, 1-1000; then n × (head `q1 <id> `, tail `[ k=v …]\n<body>`)
-- then       u                or '' for none and a caller that knows the short reply; then u × (message number 1…n, unique
--                             key, how it is held: `<ms>` until the message has ended (flag u frees it), at most that long;
--                             `=<ms>` for that long (no flag u); `~<ms>` until it is due: a later one takes its place in
--                             delayed, with its own due time, but at most that long after the first of them, 0: no limit)
-- then       maxlen, grouped  may be left out: maxlen of this call ('' none; the lower of this and the queue's counts); 1 if
--                             messages have groups, see lib/groups.lua
-- Returns {'OK', stored, now ms, degraded, then (message number, id of the holder) per message whose unique
--   key was held, then how the queue is divided, if it is: `<active> <kept> <epoch>`}, or {'DUPLICATE', 0, now ms, 0, … the
--   same} for a repeated call, or the short reply now ms: all were stored, and the rest is 0 or missing;
--   or a refusal: {'GHOST'} {'RESHARD', mark or ''} {'PAUSED'} {'FULL', stored, maxlen} {'TOOLARGE', bytes, maxsize}
--   {'BROKEN', key, type} {'ARG', name}
-- O(n) for ready, O(n log d) for delayed messages, d delayed already; O(m) more to replace one of m ≤ 1,000 due in one ms.
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
-- The short way to send a message of a group, see lib/lone_send.lua: of one without a parent, in a queue without limits.

-- Its functions are made here, as most messages have no group. Returns a function that stores the message and returns how many
-- groups stand in line anew, or nil, with nothing stored, if the number for a new group is taken; nil for any other message.
local function short_member(meta, delayed, tail)
  local SEATS_FROM, SEATS = 4503599627370496, 2147483648 -- see lib/group_members.lua
  local MAX_NAME_BYTES = 257 -- of a name, see lib/groups.lua
  local base = string.sub(meta, 1, -5)
  local states, turns, limits = base .. 'groups', base .. 'turns', base .. 'limits'
  local ordered, name = false, string.match(tail, '^[^\n]- g=([%w_.:%-%%]+)[ \n]')
  if name and string.sub(name, 1, 3) == '%3D' then ordered, name = true, '=' .. string.sub(name, 4) end
  if not name or name == '=' or string.find(name, '%', 1, true) or #name > MAX_NAME_BYTES then return nil end
  if redis.call('EXISTS', limits) > 0 then return nil end
  local found, line, seats = redis.pcall('HGET', states, ':' .. name), redis.call('TYPE', turns).ok, redis.call('TYPE', delayed).ok
  if type(found) == 'table' or line ~= 'zset' and line ~= 'none' or seats ~= 'zset' and seats ~= 'none' then return nil end
  local stored = group_records(states)
  local number, first, last, busy, turn, tag, rate_ms, wait_ms = stored.unpack(found)
  if not found then number, first, last, busy, turn, tag, rate_ms, wait_ms = -1, 0, -1, 0, 0, 0, 0, 0 end
  local tags = stored.read_tags()
  if not number or turn ~= 0 or tags.looking then return nil end

  local function give_number()
    local given = stored.number_at(tags, redis.call('HINCRBY', states, '@number', 1))
    if not given then return false end
    number, first, last = given, 0, -1
    if not found and stored.is_recent(tags, name) then tag = tags.queue + 1 end
    return true
  end

  return function(item)
    if number < 0 and not give_number() then return nil end
    last = last + 1
    redis.call('ZADD', delayed, SEATS_FROM + number * SEATS + last % SEATS, item)
    local opened, start, next_start = 0, nil, nil
    if not ordered or busy < 1 then
      start, next_start = stored.start_of(tags, { tag = tag, known = found })
      opened = redis.call('ZADD', turns, 'NX', start, name)
    else
      redis.call('ZREM', turns, name)
    end
    local record = stored.pack(number, first, last, busy, turn, tag, rate_ms, wait_ms)
    if next_start then
      redis.call('HSET', states, ':' .. name, record, '@start', next_start)
    else
      redis.call('HSET', states, ':' .. name, record)
    end
    return opened
  end
end
-- The short way of a send: messages that are ready at once, to a queue without attributes other than its shards, maxsize, the
-- priority of the messages and its journal; or one message of a group, see lib/lone_member.lua. It runs before the functions of
-- the long way are created, and checks only the keys that it writes. Returns nil, without a write, for any other send or on a
-- problem, which the long way reports.
local function send_alone()
  local redis, KEYS, ARGV = redis, KEYS, ARGV -- globals are looked up at each use
  local ready, wake, meta, stats, producers = KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
  local lane, sequence, priority, number, asked = ARGV[2], ARGV[3], ARGV[6], #ARGV / 2 - 4, ARGV[#ARGV]
  local grouped, member = #ARGV == 12 and ARGV[7] == '1' and ARGV[11] == '' and asked == '1', nil
  if grouped then number, asked = 1, ARGV[10] end
  -- No delay, ttl, unique key or maxlen.
  if tonumber(ARGV[7]) ~= number or number < 1 or number > 500 or number % 1 ~= 0 or ARGV[4] ~= '' or ARGV[5] ~= ''
    or asked ~= '' and asked ~= '0' or lane == '' or #sequence > 15 or not string.find(sequence, '^%d+$') then
    return nil
  end
  -- EXISTS counts a key as often as it is named: 1 for a token, 2 for attributes.
  local there, paused_out, shards, book = redis.call('EXISTS', wake, meta, meta), false, nil, nil
  if there > 1 then
    local set = redis.pcall('HMGET', meta, 'paused', 'maxlen', 'maxsize', 'delay_ms', 'ttl_ms', 'journal', 'shard', 'shards',
      'levels', 'groups')
    paused_out, shards = set[1] == 'out', set[8] or nil
    if set.err or set[1] and not paused_out then return nil end
    for i = 2, 5 do
      if set[i] and set[i] ~= '0' and i ~= 3 then return nil end
    end
    -- A message with all its flags within maxsize is not too large.
    local maxsize = tonumber(set[3] or 0)
    if not maxsize then return nil end
    for i = 1, maxsize > 0 and number or 0 do
      if #ARGV[7 + 2 * i] > maxsize then return nil end
    end
    if grouped then
      member = set[10] and set[6] ~= 'all' and short_member(meta, KEYS[2], ARGV[9])
      if not member then return nil end
    end
    for i = 1, set[10] and not grouped and number or 0 do
      if string.find(ARGV[7 + 2 * i], ' g=', 1, true) then return nil end
    end
    if set[6] == 'all' then
      book = short_journal({ journal = KEYS[#KEYS], meta = meta, stats = stats, all = true })
      if not book then return nil end
    end
    -- A shard takes messages if it is marked `open`.
    if set[7] and string.sub(set[7], 1, 5) ~= 'open ' or not set[7] and string.find(meta, '/', 1, true) then return nil end
    if priority ~= '0' and (#priority ~= 1 or not string.find(set[9] or '', priority, 1, true)) then return nil end
  elseif grouped or priority ~= '0' or string.find(meta, '/', 1, true) then
    return nil
  end
  -- The lane and the counters in one read and one write; the long way gives a lane its place.
  local place, field = stats, 'lane:' .. lane
  local found = redis.pcall('HMGET', stats, field, 'sent', 'stored')
  local last, sent, stored = found[1], tonumber(found[2] or 0), tonumber(found[3] or 0)
  if found.err or not sent or not stored or (sent + stored) % 1 ~= 0 then return nil end
  if not last or last == '-' then
    place, field, last = producers, lane, redis.pcall('HGET', producers, lane)
  end
  last = type(last) == 'string' and tonumber(string.match(last, '^(%d+) %d'))
  if not last or tonumber(sequence) <= last then return nil end
  local now_ms, now = clock(ARGV[1], meta)
  if not now then return nil end

  -- The first write checks the type of its key; those of the others are known.
  local pushed, rows
  if member then
    pushed = member(ARGV[8] .. now .. ' 0 0 0 0' .. ARGV[9])
  elseif number == 1 and not book then
    pushed = redis.pcall('RPUSH', ready, ARGV[8] .. now .. ' 0 0 0 0' .. ARGV[9])
  else
    local items, middle, heads = {}, now .. ' 0 0 0 0', book and {}
    for i = 1, number do items[i] = ARGV[6 + 2 * i] .. middle .. ARGV[7 + 2 * i] end
    for i = 1, book and number or 0 do
      local tail = ARGV[7 + 2 * i]
      local stop = string.find(tail, '\n', 1, true)
      if not stop then return nil end
      heads[i] = ARGV[6 + 2 * i] .. middle .. string.sub(tail, 1, stop - 1)
    end
    if book then
      -- A head with a line of its own would be another event, of any message.
      local others, own = string.gsub('\n' .. table.concat(heads, '\n'), '\nq1 [^\n]*', '')
      if others ~= '' or own ~= number then return nil end
      rows = book.rows('sent - - - - -', heads)
      if not rows then return nil end
    end
    pushed = redis.pcall('RPUSH', ready, unpack(items))
  end
  if type(pushed) ~= 'number' then return nil end
  if place == stats then
    redis.call('HSET', stats, field, sequence .. ' ' .. now, 'sent', sent + number, 'stored', stored + number)
  else
    redis.call('HSET', producers, field, sequence .. ' ' .. now)
    redis.call('HSET', stats, 'sent', sent + number, 'stored', stored + number)
  end
  local degraded = 0
  if book then
    book.now = now_ms
    degraded = book.write(rows, '')
  end
  if not paused_out and number > 1 then
    local EIGHT = { '1', '1', '1', '1', '1', '1', '1', '1' }
    -- Up to eight tokens, as `ring` of lib/counters.lua leaves.
    local tokens = there % 2 == 0 and 0 or redis.pcall('LLEN', wake)
    local lacking = type(tokens) == 'number' and math.min(number, 8) - tokens
    if lacking and lacking > 0 then tokens = redis.pcall('RPUSH', wake, unpack(EIGHT, 1, lacking)) end
    if type(tokens) ~= 'number' then degraded = 1 end
  elseif there % 2 == 0 and not paused_out and pushed > 0 and type(redis.pcall('RPUSH', wake, '1')) ~= 'number' then
    degraded = 1
  end
  if asked == '' and degraded == 0 and not shards then return now end
  return { 'OK', number, now, degraded, shards }
end
local sent_alone = send_alone()
if sent_alone then return sent_alone end
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
-- The keys of a queue as senders declare them, in this order in KEYS:
--   1 ready LIST of the messages' priority · 2 delayed ZSET · 3 wake LIST · 4 meta HASH · 5 stats HASH
-- then those of the script, and last the journal STREAM.
local ready, delayed, wake, meta, stats, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[#KEYS]
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
-- The attributes of a queue that senders read.

-- Read the attributes; nil and a refusal if meta is not a HASH.
local function read_attributes()
  local found = redis.pcall('HMGET', meta, 'paused', 'maxlen', 'maxsize', 'delay_ms', 'ttl_ms', 'levels',
    'journal', 'journal_cap', 'journal_epoch', 'journal_shed', 'shard', 'shards', 'groups')
  if found.err then return nil, { 'BROKEN', meta, redis.call('TYPE', meta).ok } end
  return {
    paused_in = found[1] == 'in' or found[1] == 'all',
    -- No worker is woken while the queue is rate limited, either.
    paused_out = found[1] == 'out' or found[1] == 'all' or found[1] and string.find(found[1], '^until ') ~= nil,
    maxlen = whole(found[2], 0, MAX_MS) or 0,
    maxsize = whole(found[3], 0, MAX_MS) or 0,
    delay_ms = whole(found[4], 0, MAX_MS) or 0,
    ttl_ms = whole(found[5], 0, MAX_MS) or 0,
    levels = found[6] or '',
    closed = string.find(meta, '/%d+}:meta$') and not string.find(found[11] or '', '^open ') and (found[11] or '') or nil,
    shards = found[12],
    groups = found[13] == '1',
    journal = { mode = found[7], cap = found[8], epoch = found[9], shed = found[10] },
  }
end
local MAX_DUE_MS = 4503599627370495 -- 2^52 - 1: from there on scores of delayed messages are seats, see lib/groups.lua

-- The middle of the header of a new message: values that only the server knows.
local function stamp(now, ttl_ms, delay_ms)
  local middle = text(now) .. ' 0 0 0 0'
  if ttl_ms > 0 then middle = middle .. ' x=' .. text(math.min(now + ttl_ms, MAX_MS)) end
  if delay_ms > 0 then middle = middle .. ' t=' .. text(math.min(now + delay_ms, MAX_DUE_MS)) end
  return middle
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
-- Accept new messages.

-- Append how the queue is divided to the reply; nothing if it never was.
local function with_shards(reply, attributes)
  if attributes.shards then reply[#reply + 1] = attributes.shards end
  return reply
end

-- A caller may name a maxlen of its own (nil: none); the lower one counts. Returns false if it is not a number.
local function lower_maxlen(attributes, given)
  if not given then return true end
  local most = whole(given, 1, MAX_MS)
  if not most then return false end
  attributes.maxlen = attributes.maxlen > 0 and math.min(attributes.maxlen, most) or most
  return true
end

-- A refusal if the queue does not accept `number` more messages, else nil. A shard accepts messages only if its mark says
-- `open` (see lib/shards.lua): not while it drains, nor after it was removed. maxlen limits the stored messages (ready,
-- delayed and unacked); 0 means no limit.
local function refusal(attributes, number)
  if attributes.closed then return { 'RESHARD', attributes.closed } end
  if attributes.paused_in then return { 'PAUSED' } end
  if attributes.maxlen > 0 then
    local stored = tonumber(redis.call('HGET', stats, 'stored')) or 0
    if stored + number > attributes.maxlen then
      return { 'FULL', text(stored), text(attributes.maxlen) }
    end
  end
  return nil
end

-- Store the members of groups among these messages; returns the others.
local function place_new(items)
  local it, rest, seats, names, seen, name_of = groups(), {}, {}, {}, {}, {}
  for i, item in ipairs(items) do
    local name = group_of(item)
    name_of[i] = name
    if name and not seen[name] then
      seen[name] = true
      names[#names + 1] = name
    end
  end
  it.begin()
  it.read_many(names)
  it.give_numbers(names)
  for i, item in ipairs(items) do
    if not name_of[i] or not it.enter(item, name_of[i], false, seats) then rest[#rest + 1] = item end
  end
  it.in_parts('ZADD', delayed, seats)
  it.finish()
  return rest
end

-- How many members of a group wait. A sender may have no right to read messages: then those count that left the middle.
local function number_waiting(name)
  if redis.acl_check_cmd('ZCOUNT', delayed, 0, 0) then return groups().waiting(name) end
  local one = groups().record(name)
  return one.number and one.last - one.first + 1 or 0
end

-- A refusal if a group would have more waiting members than its limit, or a key of groups is of another type, else nil.
-- `grouped`: some of these messages have groups; they are not looked for if not.
local function group_refusal(items, grouped, attributes)
  local more = {}
  local refused = (grouped or attributes.groups) and groups().broken()
  if refused or not grouped then
    attributes.ungrouped = true
    return refused or nil
  end
  for _, item in ipairs(items) do
    local name = group_of(item)
    if name then
      local most = groups().limit(name).members
      if most then
        more[name] = (more[name] or number_waiting(name)) + 1
        if more[name] > most then return { 'GROUPFULL', name, text(most) } end
      end
    end
  end
  if not attributes.groups then groups().mark() end
  attributes.groups = true
  return nil
end

local CHUNK = 500
-- Store messages in their lists, and record that they were sent; the caller writes the journal at its end.
local function push(items, priority, delay_ms, attributes, now)
  if #items == 0 then return end
  if not attributes.groups and not attributes.ungrouped then
    for _, item in ipairs(items) do
      if group_of(item) then
        groups().mark()
        attributes.groups = true
        break
      end
    end
  end
  open_journal(attributes.journal, now)
  if book.all then book.record_sent(items) end
  if delay_ms > 0 then
    local due = text(math.min(now + delay_ms, MAX_DUE_MS))
    for first = 1, #items, CHUNK do
      local pairs_of = {}
      for i = first, math.min(first + CHUNK - 1, #items) do
        pairs_of[#pairs_of + 1] = due
        pairs_of[#pairs_of + 1] = items[i]
      end
      redis.call('ZADD', delayed, unpack(pairs_of))
    end
    return
  end
  if attributes.groups then items = place_new(items) end
  if #items == 0 then
    if not attributes.paused_out and groups().opened > 0 then ring(wake, groups().opened) end
    return
  end
  if priority > 0 and not string.find(attributes.levels, tostring(priority), 1, true) then
    redis.call('HSET', meta, 'levels', attributes.levels .. tostring(priority))
  end
  for first = 1, #items, CHUNK do
    redis.call('RPUSH', ready, unpack(items, first, math.min(first + CHUNK - 1, #items)))
  end
  if not attributes.paused_out then ring(wake, #items) end
end
-- Unique keys of new messages: which of these are kept out, and which take the place of one that waits.
--   unique HASH   unique key → `<message id> <expiry ms>`, then ` for` if it is held whatever becomes of the message, or
--                 ` @<due ms> <ms of the first one>` if a later message may replace it until it is due
local unique = KEYS[7]

-- A delayed message that may be replaced; nil if it is not delayed any more.
local function replaceable(id, due_ms)
  for first = 0, 900, 100 do
    local page = redis.call('ZRANGEBYSCORE', delayed, due_ms, due_ms, 'LIMIT', first, 100)
    for _, item in ipairs(page) do
      if string.sub(item, 1, #id + 4) == 'q1 ' .. id .. ' ' then return item end
    end
    if #page < 100 then return nil end
  end
end

-- The hold of a message on its key. One that may be replaced (`~`) has a delay of its own, and perhaps the item that it
-- replaces; it is postponed to `most_ms` after the first of them at most, 0: without a limit.
local function new_hold(mode, ms, message, own, id, due_ms, first_ms, delay_ms, ttl_ms, now)
  local hold = { id = own, message = message, earlier = {}, more = mode == '=' and ' for' or '' }
  if mode == '~' then
    hold.item = due_ms and id ~= own and replaceable(id, due_ms)
    hold.first_ms = hold.item and tonumber(first_ms) or now
    hold.delay_ms = ms > 0 and math.max(math.min(delay_ms, hold.first_ms + ms - now), 0) or delay_ms
    hold.more = ' @' .. text(now + hold.delay_ms) .. ' ' .. text(hold.first_ms)
    ms = MAX_MS
  elseif mode == '' and ttl_ms > 0 then
    ms = math.min(ms, ttl_ms) -- what has expired will not run
  end
  hold.until_ms = math.min(now + ms, MAX_MS)
  return hold
end

-- Read the keys of a call. Returns a list {message number, id of the holder, …} of the messages that are kept out, the same
-- as a set, key → hold, how many waiting messages are replaced, and message number → delay ms where it is not that of
-- the call; nil for wrong words, or nil and an error.
local function take_keys(first_key, keyed, number, delay_ms, ttl_ms, now, id_of)
  local kept_out, outside, holds, replaced, sooner = {}, {}, {}, 0, {}
  local function keep_out(message, id)
    kept_out[#kept_out + 1] = text(message)
    kept_out[#kept_out + 1] = id
    outside[message] = true
  end
  for i = 0, keyed - 1 do
    local at = first_key + 1 + 3 * i
    local message, key = whole(ARGV[at], 1, number), ARGV[at + 1]
    local mode, ms = string.match(ARGV[at + 2] or '', '^([=~]?)(%d+)$')
    ms = whole(ms, mode == '~' and 0 or 1, MAX_MS)
    local own = message and id_of(message)
    if not ms or not own then return nil end
    -- Asked at the first one as well, which has nothing to replace: a producer may not read messages.
    if mode == '~' and not redis.acl_check_cmd('ZRANGEBYSCORE', delayed, '0', '0') then
      return nil, redis.error_reply('NOPERM this user may not read the delayed messages, as debounce does: it needs the role consumer')
    end
    local id, until_ms, more = string.match(redis.call('HGET', unique, key) or '', '^(%S+) (%d+)(.*)$')
    if not id or tonumber(until_ms) <= now then id, more = nil, '' end
    local before, due_ms, first_ms = holds[key], string.match(more, '^ @(%d+) (%d+)$')
    if before and mode == '~' and before.first_ms then
      table.insert(before.earlier, before.message) -- the last one of a call wins
      before.id, before.message = own, message
    elseif before then
      keep_out(message, before.id)
    elseif id and id ~= own and not (mode == '~' and due_ms) then
      keep_out(message, id)
    else
      holds[key] = new_hold(mode, ms, message, own, id, due_ms, first_ms, delay_ms, ttl_ms, now)
      if holds[key].item then replaced = replaced + 1 end
    end
  end
  for _, hold in pairs(holds) do
    for _, message in ipairs(hold.earlier) do keep_out(message, hold.id) end
    if hold.delay_ms and hold.delay_ms ~= delay_ms then sooner[hold.message] = hold.delay_ms end
  end
  return kept_out, outside, holds, replaced, sooner
end

-- The messages are stored: they have their keys, and those that they replace go.
local function write_keys(holds)
  for key, hold in pairs(holds) do
    redis.call('HSET', unique, key, hold.id .. ' ' .. text(hold.until_ms) .. hold.more)
    if hold.item then
      redis.call('ZREM', delayed, hold.item)
      record('cancelled', hold.item)
    end
  end
end

local producers, attributes, refused = KEYS[6], read_attributes()
refused = refused or broken({ stats, 'hash', ready, 'list', wake, 'list', delayed, 'zset', unique, 'hash', journal, 'stream' })
if refused then return refused end
local now = clock(ARGV[1], meta)
local lane, sequence, priority = ARGV[2], whole(ARGV[3], 0, MAX_MS), whole(ARGV[6], 0, 9)
local number = whole(ARGV[7], 1, 1000)
if not now or not sequence or not priority or not number then return { 'ARG', 'header' } end
local delay_ms = ARGV[4] == '' and attributes.delay_ms or whole(ARGV[4], 0, MAX_MS)
if string.sub(ARGV[4], 1, 1) == '@' then
  local due_ms = whole(string.sub(ARGV[4], 2), 0, MAX_MS)
  delay_ms = due_ms and math.max(due_ms - now, 0)
end
local ttl_ms = ARGV[5] == '' and attributes.ttl_ms or whole(ARGV[5], 0, MAX_MS)
if not delay_ms or not ttl_ms then return { 'ARG', 'delay or ttl' } end
local first_key = 8 + 2 * number
local keyed = ARGV[first_key] == '' and 0 or whole(ARGV[first_key], 0, number)
if not keyed then return { 'ARG', 'messages' } end
local most, grouped = ARGV[first_key + 1 + 3 * keyed], ARGV[first_key + 2 + 3 * keyed] == '1'
if grouped and most == '' then most = nil end
if not lower_maxlen(attributes, most) then return { 'ARG', 'maxlen' } end
local function id_of(message) return string.match(ARGV[6 + 2 * message], '^q1 (%S+)') end
-- A lane has its place among the counters while these are few, since others read all of them. The sign there for a lane
-- that stands among the producers is `-`.
local MAX_FIELDS = 64
local place, field = stats, 'lane:' .. lane
if lane ~= '' then
  local found = redis.call('HGET', stats, field)
  if not found or found == '-' then
    found = redis.pcall('HGET', producers, lane) or ''
    if type(found) == 'table' then return { 'BROKEN', producers, redis.call('TYPE', producers).ok } end
    local fields = found == '' and redis.pcall('HLEN', stats) -- a right that older rules do not give to senders
    if type(fields) ~= 'number' or fields >= MAX_FIELDS then place, field = producers, lane end
  end
  local last, out = string.match(found, '^(%d+) %d+(.*)$')
  last = tonumber(last)
  if last and sequence == last then
    local reply = { 'DUPLICATE', 0, text(now), 0 } -- same as the first time: the unique keys may have new holders
    for each in string.gmatch(out, '%S+') do reply[#reply + 1] = each end
    return with_shards(reply, attributes)
  end
  if last and sequence < last then return { 'GHOST' } end
end

local kept_out, outside, holds, replaced, sooner = take_keys(first_key, keyed, number, delay_ms, ttl_ms, now, id_of)
if not kept_out then return outside or { 'ARG', 'unique' } end
refused = refusal(attributes, number - #kept_out / 2 - replaced)
if refused then return refused end
local middle, items, early = stamp(now, ttl_ms, delay_ms), {}, {}
for message = 1, number do
  local head, tail = ARGV[6 + 2 * message], ARGV[7 + 2 * message]
  if attributes.maxsize > 0 then
    local bytes = #tail - (string.find(tail, '\n', 1, true) or 0)
    if bytes > attributes.maxsize then return { 'TOOLARGE', text(bytes), text(attributes.maxsize) } end
  end
  if sooner[message] then
    early[#early + 1] = { head .. stamp(now, ttl_ms, sooner[message]) .. tail, sooner[message] }
  elseif not outside[message] then
    items[#items + 1] = head .. middle .. tail
  end
end

refused = group_refusal(items, grouped, attributes)
if refused then return refused end
push(items, priority, delay_ms, attributes, now)
for _, one in ipairs(early) do push({ one[1] }, priority, one[2], attributes, now) end
write_keys(holds)
if lane ~= '' then
  if place == stats and #kept_out > 0 then -- what was kept out makes a lane long, and counters are read often
    redis.call('HSET', stats, field, '-')
    place, field = producers, lane
  end
  redis.call('HSET', place, field, table.concat({ text(sequence), text(now), unpack(kept_out) }, ' '))
end
local stored = #items + #early
local amounts = { sent = stored, stored = stored - replaced, cancelled = replaced }
local degraded = math.max(count(stats, amounts), write_journal(''))
return with_shards({ 'OK', stored, text(now), degraded, unpack(kept_out) }, attributes)
