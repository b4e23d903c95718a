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
