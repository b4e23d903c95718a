-- What a run records counts only while the lease of its delivery holds the message. Include after lease.lua.

local MAX_KEEP_MS, MAX_VALUE, MAX_RUN = 2592000000, 1114112, 67108864 -- 30 days · 1 MiB and what encryption adds · 64 MiB

-- Read fields of a run, '@bytes' first; returns them, whether the lease holds the message, and a refusal for a key of
-- another type.
local function read_run(run, runs, lease, id, index, names)
  local held = redis.pcall('HEXISTS', lease, index)
  local found = redis.pcall('HMGET', run, unpack(names))
  if type(held) == 'table' then return found, false, { 'BROKEN', lease, redis.call('TYPE', lease).ok } end
  if found.err then return found, false, { 'BROKEN', run, redis.call('TYPE', run).ok } end
  if not found[1] then
    local score = redis.pcall('ZSCORE', runs, id)
    if type(score) == 'table' and score.err then return found, false, { 'BROKEN', runs, redis.call('TYPE', runs).ok } end
  end
  if held == 0 then
    -- It may be one of several that share a field. They are settled one by one anyway.
    loosen(lease)
    held = redis.call('HEXISTS', lease, index)
  end
  return found, held == 1
end

-- Forget the failures of a run that has come further, and mark its message as a run if `keep_ms` is given. Returns false,
-- and changes nothing, if the lease holds another message at this index.
local function advance(lease, lease_name, index, id, keep_ms, now)
  local message = delivered(redis.call('HGET', lease, index), lease_name, index, now)
  if not message or message.id ~= id then return false end
  if keep_ms then
    with_flag(message, 'c', '1')
    with_flag(message, 'r', text(keep_ms))
  end
  message.nacks, message.timeouts = 0, 0
  redis.call('HSET', lease, index, assemble(message))
  return true
end
