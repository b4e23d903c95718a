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
