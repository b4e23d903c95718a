-- Groups: messages with flag g, which take turns. Made only where a call meets one.
--   delayed ZSET    a waiting member's score is not a time but its seat: 2^52 + number of its group × 2^31 + place. So it
--                   is in sight of all that look at delayed messages, and never due.
--   groups HASH     `:<group>` → `<number or -> <first> <last> <busy> <turn> <tag> <rate ms> <wait ms>`; `#<number>` → group;
--                   `@tag`, `@plain`: the virtual times of the queue and of its messages without
--                   a group; `@number`: the last one given; `@ms`: the last receive; `*<parent>`: how many of a shared
--                   limit have started
--   turns ZSET      what may run, a group or a parent (`acme/` of `acme/ann`) → its virtual time
--   children ZSET   all 0: `<parent>\n<turn, 16 digits>\n<group>`: groups of a parent that may run, in their turn
--   later ZSET      a group or parent that must wait → until when, in ms
--   slots HASH      `<lease>:<index>` of a delivered member → group; `:<message id>` of one that keeps its slot while it waits
--   limits HASH     group, parent, `<parent>*`, `*` or `*/` → `[c=<concurrency>] [r=<count>/<ms>] [b=<burst>] [w=<weight>] [m=<members>]`;
--                   with `s=<version>` the share of a limit over several queues, see share.lua
-- Their keys are made here: they are in the slot of the queue. meta has `groups` 1, and a value for `journal`, which sends all
-- calls the long way.
-- Start-time fair queueing: the smallest tag is next, and moves on by 1 / weight for each message. A group that begins to wait
-- starts at the virtual time of the queue, so it has no credit. A group whose name begins with `=` is ordered: one at a time.

local groups, group_of, more_of_groups = nil, nil, {}
do
local MAX_GROUP = 257

-- The group of an item, or nil. Lists and leases may hold items of other programs: an invalid name is none.
function group_of(item)
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
function groups()
  if made then return made end
  local base = string.sub(meta, 1, -5)
  local states, turns, children = base .. 'groups', base .. 'turns', base .. 'children'
  local later, slots, limits = base .. 'later', base .. 'slots', base .. 'limits'
  local it, records, tags = { opened = 0 }, {}, nil

  local function number_text(value) return string.format('%.17g', value) end

  function it.parent_of(name)
    return string.match(name, '^=?([^/]+/)[^/]')
  end

  -- Virtual times: of the queue, and of its messages without a group.
  function it.tags()
    if not tags then
      local found = redis.call('HMGET', states, '@tag', '@plain', '@ms')
      tags = { queue = tonumber(found[1]) or 0, plain = tonumber(found[2]) or 0, at_ms = tonumber(found[3]) or 0 }
    end
    return tags
  end

  function it.write_tags()
    redis.call('HSET', states, '@tag', number_text(tags.queue), '@plain', number_text(tags.plain),
      '@ms', text(tags.at_ms))
  end

  local function read(name, found)
    local number, first, last, busy, turn, tag, rate_ms, wait_ms =
      string.match(found or '', '^(%S+) (%-?%d+) (%-?%d+) (%d+) (%d+) (%S+) (%S+) (%S+)$')
    local one = {
      number = tonumber(number), first = tonumber(first) or 0, last = tonumber(last) or -1, busy = tonumber(busy) or 0,
      turn = tonumber(turn) or 0, tag = tonumber(tag) or 0, rate_ms = tonumber(rate_ms) or 0, wait_ms = tonumber(wait_ms) or 0,
      known = found and true,
    }
    records[name] = one
    return one
  end

  function it.record(name)
    return records[name] or read(name, redis.call('HGET', states, ':' .. name))
  end

  function it.read_many(names)
    local AT_ONCE = 500
    for first = 1, #names, AT_ONCE do
      local fields = {}
      for i = first, math.min(first + AT_ONCE - 1, #names) do fields[#fields + 1] = ':' .. names[i] end
      for i, found in ipairs(redis.call('HMGET', states, unpack(fields))) do
        if not records[names[first + i - 1]] then read(names[first + i - 1], found) end
      end
    end
  end

  -- A group without members, slots or a wait is forgotten.
  function it.write(name)
    local one = records[name]
    if not one.number and one.busy == 0 and one.turn == 0 and one.rate_ms == 0 and one.wait_ms == 0 then
      if one.known then redis.call('HDEL', states, ':' .. name) end
      one.known = false
      return
    end
    -- Only its rate or its wait is left: it is forgotten after that.
    if not one.number and one.busy == 0 and one.turn == 0 then
      redis.call('ZADD', later, text(math.ceil(math.max(one.rate_ms, one.wait_ms))), name)
    end
    redis.call('HSET', states, ':' .. name, table.concat({
      one.number and text(one.number) or '-', text(one.first), text(one.last), text(one.busy), text(one.turn),
      number_text(one.tag), number_text(one.rate_ms), text(one.wait_ms),
    }, ' '))
    one.known = true
  end

  local function child(parent, turn, name)
    return string.format('%s\n%016d\n%s', parent, turn, name)
  end

  -- The group of a parent whose turn it is, or nil.
  function it.first_child(parent)
    local found = redis.call('ZRANGEBYLEX', children, '[' .. parent .. '\n', '(' .. parent .. '\v', 'LIMIT', 0, 1)[1]
    return found and string.match(found, '([^\n]+)$')
  end

  -- Let a group of a parent stand in line (at its end), or not; writes neither record.
  function it.queue_up(parent, name, stands)
    local one, above = it.record(name), it.record(parent)
    if one.turn > 0 then redis.call('ZREM', children, child(parent, one.turn, name)) end
    one.turn = 0
    if not stands then return end
    above.turn = above.turn + 1
    one.turn = above.turn
    redis.call('ZADD', children, 0, child(parent, one.turn, name))
  end

  local function take_turn(name, may)
    if not may then
      redis.call('ZREM', turns, name)
      return
    end
    local tag = number_text(math.max(it.record(name).tag, it.tags().queue))
    if redis.call('ZADD', turns, 'NX', tag, name) == 1 then it.opened = it.opened + 1 end
  end

  -- Bring the turns of a group up to date, and write its record and that of its parent.
  function it.refresh(name)
    local one, parent = it.record(name), it.parent_of(name)
    local may = one.number and one.first <= one.last and it.is_open(name)
    if not parent then
      take_turn(name, may)
    else
      if (one.turn > 0) ~= (may and true or false) then it.queue_up(parent, name, may) end
      take_turn(parent, it.is_open(parent) and it.first_child(parent))
      if not it.first_child(parent) then it.record(parent).turn = 0 end
      it.write(parent)
    end
    it.write(name)
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
  it.line_of, it.take_turn, it.number_text = child, take_turn, number_text
  for _, extend in ipairs(more_of_groups) do extend(it) end
  made = it
  return it
end
end
