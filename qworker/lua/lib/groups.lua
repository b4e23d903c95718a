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
