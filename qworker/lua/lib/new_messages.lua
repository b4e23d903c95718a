-- New messages that follow from others: they are stored even if the queue is full or paused.

-- Put a message into `to`, see lib/requeue.lua, or delay it. `new`: priority, delay_ms and ttl_ms (both '' for the queue's), head,
-- tail.
local function push_new(new, to, now, amounts)
  local defaults = redis.call('HMGET', meta, 'delay_ms', 'ttl_ms', 'levels')
  local delay_ms = whole(new.delay_ms, 0, MAX_MS) or whole(defaults[1], 0, MAX_MS) or 0
  local ttl_ms = whole(new.ttl_ms, 0, MAX_MS) or whole(defaults[2], 0, MAX_MS) or 0
  local item = new.head .. stamp(now, ttl_ms, delay_ms) .. new.tail
  if book.all then record('sent', item) end
  note_awaited(new.tail, amounts)
  amounts.sent, amounts.stored = (amounts.sent or 0) + 1, (amounts.stored or 0) + 1
  if delay_ms > 0 then
    redis.call('ZADD', delayed, text(math.min(now + delay_ms, MAX_DUE_MS)), item)
    return
  end
  if not has_groups and group_of(item) then
    groups().mark()
    has_groups = true
  end
  if not to.used[new.priority] then
    redis.call('HSET', meta, 'levels', (defaults[3] or '') .. text(new.priority))
    to.used[new.priority] = true
  end
  put(to, to.tails, new.priority, item)
end
