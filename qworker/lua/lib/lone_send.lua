-- The short way of a send: one message, ready at once, to a queue without attributes other than its shards and the priority
-- of the message. It runs before the functions of the long way are created, and checks only the keys that it writes. Returns
-- nil, without a write, for any other send or on a problem, which the long way reports.
local function send_alone()
  local ready, wake, meta, stats, producers = KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
  local lane, sequence, priority = ARGV[2], ARGV[3], ARGV[6]
  -- One message; no delay, ttl, unique key or maxlen.
  if #ARGV ~= 10 or ARGV[7] ~= '1' or ARGV[4] ~= '' or ARGV[5] ~= '' or ARGV[10] ~= '0'
    or lane == '' or #sequence > 15 or not string.find(sequence, '^%d+$') then
    return nil
  end
  -- EXISTS counts a key as often as it is named: 1 for a token, 2 for attributes.
  local there, paused_out, shards = redis.call('EXISTS', wake, meta, meta), false, nil
  if there > 1 then
    local set = redis.pcall('HMGET', meta, 'paused', 'maxlen', 'maxsize', 'delay_ms', 'ttl_ms', 'journal', 'shard', 'shards',
      'levels')
    paused_out, shards = set[1] == 'out', set[8] or nil
    if set.err or set[1] and not paused_out or set[2] or set[3] or set[4] or set[5] or set[6] then return nil end
    -- A shard takes messages if it is marked `open`.
    if set[7] and string.sub(set[7], 1, 5) ~= 'open ' or not set[7] and string.find(meta, '/', 1, true) then return nil end
    if priority ~= '0' and (#priority ~= 1 or not string.find(set[9] or '', priority, 1, true)) then return nil end
  elseif priority ~= '0' or string.find(meta, '/', 1, true) then
    return nil
  end
  local last = redis.pcall('HGET', producers, lane)
  if last then
    last = type(last) == 'string' and tonumber(string.match(last, '^(%d+) %d'))
    if not last or tonumber(sequence) <= last then return nil end
  end
  local _, now = clock(ARGV[1], meta)
  if not now then return nil end

  -- The first write to a key checks its type; on failure the earlier writes are undone.
  if type(redis.pcall('HINCRBY', stats, 'sent', '1')) ~= 'number' then return nil end
  if type(redis.pcall('RPUSH', ready, ARGV[8] .. now .. ' 0 0 0 0' .. ARGV[9])) ~= 'number' then
    redis.call('HINCRBY', stats, 'sent', '-1')
    return nil
  end
  redis.call('HSET', producers, lane, sequence .. ' ' .. now)
  local degraded = 0
  if type(redis.pcall('HINCRBY', stats, 'stored', '1')) ~= 'number' then degraded = 1 end
  if there % 2 == 0 and not paused_out and type(redis.pcall('RPUSH', wake, '1')) ~= 'number' then degraded = 1 end
  return { 'OK', 1, now, degraded, shards }
end
local sent_alone = send_alone()
if sent_alone then return sent_alone end
