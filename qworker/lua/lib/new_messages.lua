-- New messages that follow from others: they are stored even if the queue is full or paused.

-- Put a message into `to`, see lib/requeue.lua, or delay it. `new`: priority, delay_ms and ttl_ms (both '' for the queue's), head,
-- tail.
local function push_new(new, to, now, amounts)
  local defaults = to.defaults
  if not defaults then
    local found = redis.call('HMGET', meta, 'delay_ms', 'ttl_ms', 'levels')
    defaults = { delay_ms = whole(found[1], 0, MAX_MS) or 0, ttl_ms = whole(found[2], 0, MAX_MS) or 0, levels = found[3] or '' }
    to.defaults = defaults
  end
  local delay_ms = new.delay_ms ~= '' and whole(new.delay_ms, 0, MAX_MS) or defaults.delay_ms
  local ttl_ms = new.ttl_ms ~= '' and whole(new.ttl_ms, 0, MAX_MS) or defaults.ttl_ms
  local item = new.head .. stamp(now, ttl_ms, delay_ms) .. new.tail
  if book.all then record('sent', item) end
  note_awaited(new.tail, amounts)
  amounts.sent, amounts.stored = (amounts.sent or 0) + 1, (amounts.stored or 0) + 1
  if delay_ms > 0 then
    redis.call('ZADD', delayed, text(math.min(now + delay_ms, MAX_DUE_MS)), item)
    return
  end
  if not has_groups and string.find(new.tail, '^[^\n]* g=') and group_of(item) then
    groups().mark()
    has_groups = true
  end
  if not to.used[new.priority] then
    if not string.find(defaults.levels, text(new.priority), 1, true) then
      defaults.levels = defaults.levels .. text(new.priority)
      redis.call('HSET', meta, 'levels', defaults.levels)
    end
    to.used[new.priority] = true
  end
  put(to, to.tails, new.priority, item)
end
