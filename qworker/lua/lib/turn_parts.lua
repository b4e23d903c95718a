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
