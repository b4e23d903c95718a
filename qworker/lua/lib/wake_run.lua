-- Give a run a signal, of which the first value stays, and wake it if it waits for that: its message is put into `to`, see
-- lib/requeue.lua. Returns the value given before or '', and the delayed item that the caller takes out once `to` is written,
-- or nil.
local function wake_run(run, signal, value, to, now)
  local found = redis.call('HMGET', run, signal, '@parked', '@waits')
  local item = found[3] == signal and found[2]
  if not found[1] then redis.call('HSET', run, signal, ' t=' .. text(now) .. value) end
  local woken = item and redis.call('ZSCORE', delayed, item) and parse(item)
  if not woken then return found[1] or '', nil end
  if book.all then record('promoted', item) end
  ready_from(woken, now)
  -- A member of a group stays in the set, under another text.
  if assemble(woken) == item then ready_from(woken, now + 1) end
  put(to, to.tails, level(item), assemble(woken))
  redis.call('HDEL', run, '@parked', '@waits', '@since')
  return found[1] or '', item
end
