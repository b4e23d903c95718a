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
