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
