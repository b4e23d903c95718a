-- Deliver up to `count` items of the queue in one new lease.

local MAX_BYTES = 1048576 -- a batch ends at its count or at this size
local NONE = {}
local SPARE = 256 -- items that may be read beyond `count` (expired, cancelled, foreign …)

-- Decide about one item at the head: take it, end it, or (newer version) move it behind the others,
-- for consumers of that version.
local function take(item, level_number, marked, batch, to, now, amounts)
  local what, head = kind(item), nil
  batch.bytes = batch.bytes + #item
  if what == 'own' then
    head = header(item)
    local ended = over(head, now, marked)
    if ended and parse(item) then
      record(ended, item)
      end_of(item, ended)
      amounts[ended] = (amounts[ended] or 0) + 1
      amounts.stored = (amounts.stored or 0) - 1
      return
    end
    local name = level_number and string.find(head, ' g=', 1, true) and group_of(item)
    if name then
      -- It came to this list by a call that does not know groups, or whose queue had none.
      if not has_groups then
        groups().mark()
        has_groups = true
      end
      if groups().place(item, name, string.find(head, ' o=', 1, true) ~= nil) then return end
    end
    start_unique(head)
  elseif what == 'newer' then
    put(to, to.tails, level_number or 0, item)
    amounts.unsupported = (amounts.unsupported or 0) + 1
    return
  elseif what == 'foreign' then
    bury_foreign(item, {}, now, amounts)
    return
  else
    amounts.stored = (amounts.stored or 0) + 1 -- plain: counted when first seen
    batch.plain = true
  end
  batch.number = batch.number + 1
  batch.items[batch.number], batch.heads[batch.number] = item, head or item
end

-- The next suspect, nil if there is none or all that were looked at wait for the rates of their groups.
local function next_suspect(now)
  if has_groups then return turns.next_suspect(now) end
  return redis.call('LINDEX', suspect, 0) or nil
end

-- How many suspects may be received.
local function suspects_left(now)
  local number = redis.call('LLEN', suspect)
  return number > 0 and has_groups and turns.suspects_wait(now) and 0 or number
end

local function ready_left(levels, now)
  local left = now and suspects_left(now) or 0
  for _, number in ipairs(levels) do left = left + redis.call('LLEN', ready(number)) end
  return left
end

-- Read one level into the batch; the items read are trimmed from its head afterwards. Items that a bound leaves behind
-- come before the levels below, so `batch.ended` keeps those out.
local function read_level(number, batch, count, to, now, amounts)
  local seen, before = 0, batch.bytes
  while batch.number < count and batch.bytes < MAX_BYTES and seen < count + SPARE do
    local chunk = redis.call('LRANGE', ready(number), seen,
      seen + math.min(chunk_size(seen, batch.bytes - before, MAX_BYTES - batch.bytes), count - batch.number) - 1)
    if #chunk == 0 then break end
    local marked = batch.tombstones and marked_in(chunk, cancelled) or NONE
    for i = 1, #chunk do
      local item = chunk[i]
      if batch.bytes > 0 and batch.bytes + #item > MAX_BYTES then
        batch.ended = true
        return seen
      end
      -- Without flags and tombstones, as usual, no item can be expired or cancelled.
      if not marked[i] and kind(item) == 'own' and not has_flags(item) then
        batch.bytes, batch.number = batch.bytes + #item, batch.number + 1
        batch.items[batch.number] = item
        if book.all then batch.heads[batch.number] = header(item) end
      else
        take(item, number, marked[i], batch, to, now, amounts)
      end
      seen = seen + 1
    end
  end
  batch.ended = seen >= count + SPARE
  return seen
end

-- hint_ms: -1 paused · 0 more is ready now · n nothing is until the next delayed message is due, or the queue is no longer rate
-- limited, in n ms · -2 nothing known
local function hint(left, received, now)
  if left > 0 then return 0 end
  if received > 0 then return -2 end
  local next_due = tonumber(redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2])
  if has_groups then
    -- Members wait for others of their group, or for a time of their own.
    if next_due and groups().is_seat(next_due) then next_due = nil end
    local later, suspects_ms = groups().next_later(), turns.suspects_wait(now)
    if later then next_due = math.min(next_due or later, later) end
    if suspects_ms then next_due = math.min(next_due or suspects_ms, suspects_ms) end
  end
  return next_due and math.max(1, next_due - now) or -2
end

-- request: key, id, count, visibility_ms, suspects (0 never, 1 when nothing else is ready, 2 first)
-- Returns items, deadline ms, ready left, hint ms, suspect 1 or 0.
local function receive(request, attributes, levels, now, amounts)
  if attributes.paused_out then return {}, 0, 0, -1, 0 end
  if limited_ms then
    if limited_ms > now then
      local until_ms = set_back(limited_ms, redis.call('HGET', meta, 'limited_ms'), now)
      if until_ms < limited_ms then
        limited_ms = until_ms
        redis.call('HSET', meta, 'paused', 'until ' .. text(limited_ms), 'limited_ms', text(now))
      end
      return {}, 0, 0, math.max(1, limited_ms - now), 0
    end
    redis.call('HDEL', meta, 'paused', 'limited_ms')
  end
  local first_lease = redis.call('ZCARD', unacked) == 0
  local batch = { items = {}, heads = {}, number = 0, bytes = 0, tombstones = redis.call('EXISTS', cancelled) == 1 }
  local to, cut, members = places(levels), {}, nil
  local lone = request.suspects == 2 and next_suspect(now)
  if not lone then
    if has_groups then
      local function read_plain(number)
        for _, each in ipairs(levels) do
          cut[each] = read_level(each, batch, number, to, now, amounts)
          if batch.ended then break end
        end
      end
      local bounds = { count = request.count, steps = request.count + SPARE, bytes = MAX_BYTES }
      members = turns.take(batch, bounds, ready_left(levels), read_plain, now, amounts)
    else
      for _, number in ipairs(levels) do
        cut[number] = read_level(number, batch, request.count, to, now, amounts)
        if batch.ended then break end
      end
    end
    if #batch.items == 0 and request.suspects == 1 then lone = next_suspect(now) end
  end
  local from_suspect = 0
  if lone then
    take(lone, nil, batch.tombstones, batch, to, now, amounts)
    from_suspect = 1
  end
  local deadline = now + request.visibility_ms
  if #batch.items > 0 then
    write_items(request.key, batch.items)
    redis.call('ZADD', unacked, text(deadline), request.id)
  end
  if book.all then
    book.record_delivered(batch.heads, request.id, batch.plain, members and turns.reasons(batch.heads, members.names, now))
  end
  local behind = write_places(to)
  for number, seen in pairs(cut) do
    if seen > 0 then redis.call('LTRIM', ready(number), seen, -1) end
  end
  if from_suspect > 0 then redis.call('LTRIM', suspect, 1, -1) end -- a pop would return the body
  if has_groups then turns.write(request.id, batch, members, now) end
  -- The reaper's watch for gaps starts with the first lease; see grace.lua.
  if first_lease and #batch.items > 0 then redis.call('HSET', stats, 'reaped_ms', text(now)) end
  amounts.received = (amounts.received or 0) + #batch.items
  amounts.unacked = (amounts.unacked or 0) + #batch.items
  -- Left: what this caller could receive, so not the items it has just moved behind the others.
  local left = math.max(0, ready_left(levels, request.suspects > 0 and now) - behind)
  if has_groups then left = left + groups().running(now) end
  return batch.items, deadline, left, hint(left, #batch.items, now), from_suspect
end

-- The content of a lease, for a caller that never saw the reply of the call that made it.
-- Returns items, deadline ms, indices, suspect 1 or 0.
local function resume(request)
  local deadline = redis.call('ZSCORE', unacked, request.id)
  local items, indices, lone = {}, {}, 0
  if deadline then
    for i, entry in ipairs(read_lease(request.key)) do
      items[i], indices[i] = entry[2], tostring(entry[3])
    end
  end
  if indices[1] == '0' and is_suspect(parse(items[1])) then lone = 1 end
  return items, tonumber(deadline) or 0, indices, lone
end
