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
