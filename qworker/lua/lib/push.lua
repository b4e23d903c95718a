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
