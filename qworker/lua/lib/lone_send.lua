-- The short way of a send: messages that are ready at once, to a queue without attributes other than its shards, maxsize, the
-- priority of the messages and its journal; or one message of a group, see lib/lone_member.lua. It runs before the functions of
-- the long way are created, and checks only the keys that it writes. Returns nil, without a write, for any other send or on a
-- problem, which the long way reports.
local function send_alone()
  local redis, KEYS, ARGV = redis, KEYS, ARGV -- globals are looked up at each use
  local ready, wake, meta, stats, producers = KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
  local lane, sequence, priority, number, asked = ARGV[2], ARGV[3], ARGV[6], #ARGV / 2 - 4, ARGV[#ARGV]
  local grouped, member = #ARGV == 12 and ARGV[7] == '1' and ARGV[11] == '' and asked == '1', nil
  if grouped then number, asked = 1, ARGV[10] end
  -- No delay, ttl, unique key or maxlen.
  if tonumber(ARGV[7]) ~= number or number < 1 or number > 500 or number % 1 ~= 0 or ARGV[4] ~= '' or ARGV[5] ~= ''
    or asked ~= '' and asked ~= '0' or lane == '' or #sequence > 15 or not string.find(sequence, '^%d+$') then
    return nil
  end
  -- EXISTS counts a key as often as it is named: 1 for a token, 2 for attributes.
  local there, paused_out, shards, book = redis.call('EXISTS', wake, meta, meta), false, nil, nil
  if there > 1 then
    local set = redis.pcall('HMGET', meta, 'paused', 'maxlen', 'maxsize', 'delay_ms', 'ttl_ms', 'journal', 'shard', 'shards',
      'levels', 'groups')
    paused_out, shards = set[1] == 'out', set[8] or nil
    if set.err or set[1] and not paused_out then return nil end
    for i = 2, 5 do
      if set[i] and set[i] ~= '0' and i ~= 3 then return nil end
    end
    -- A message with all its flags within maxsize is not too large.
    local maxsize = tonumber(set[3] or 0)
    if not maxsize then return nil end
    for i = 1, maxsize > 0 and number or 0 do
      if #ARGV[7 + 2 * i] > maxsize then return nil end
    end
    if grouped then
      member = set[10] and set[6] ~= 'all' and short_member(meta, KEYS[2], ARGV[9])
      if not member then return nil end
    end
    for i = 1, set[10] and not grouped and number or 0 do
      if string.find(ARGV[7 + 2 * i], ' g=', 1, true) then return nil end
    end
    if set[6] == 'all' then
      book = short_journal({ journal = KEYS[#KEYS], meta = meta, stats = stats, all = true })
      if not book then return nil end
    end
    -- A shard takes messages if it is marked `open`.
    if set[7] and string.sub(set[7], 1, 5) ~= 'open ' or not set[7] and string.find(meta, '/', 1, true) then return nil end
    if priority ~= '0' and (#priority ~= 1 or not string.find(set[9] or '', priority, 1, true)) then return nil end
  elseif grouped or priority ~= '0' or string.find(meta, '/', 1, true) then
    return nil
  end
  -- The lane and the counters in one read and one write; the long way gives a lane its place.
  local place, field = stats, 'lane:' .. lane
  local found = redis.pcall('HMGET', stats, field, 'sent', 'stored')
  local last, sent, stored = found[1], tonumber(found[2] or 0), tonumber(found[3] or 0)
  if found.err or not sent or not stored or (sent + stored) % 1 ~= 0 then return nil end
  if not last or last == '-' then
    place, field, last = producers, lane, redis.pcall('HGET', producers, lane)
  end
  last = type(last) == 'string' and tonumber(string.match(last, '^(%d+) %d'))
  if not last or tonumber(sequence) <= last then return nil end
  local now_ms, now = clock(ARGV[1], meta)
  if not now then return nil end

  -- The first write checks the type of its key; those of the others are known.
  local pushed, rows
  if member then
    pushed = member(ARGV[8] .. now .. ' 0 0 0 0' .. ARGV[9])
  elseif number == 1 and not book then
    pushed = redis.pcall('RPUSH', ready, ARGV[8] .. now .. ' 0 0 0 0' .. ARGV[9])
  else
    local items, middle, heads = {}, now .. ' 0 0 0 0', book and {}
    for i = 1, number do items[i] = ARGV[6 + 2 * i] .. middle .. ARGV[7 + 2 * i] end
    for i = 1, book and number or 0 do
      local tail = ARGV[7 + 2 * i]
      local stop = string.find(tail, '\n', 1, true)
      if not stop then return nil end
      heads[i] = ARGV[6 + 2 * i] .. middle .. string.sub(tail, 1, stop - 1)
    end
    if book then
      -- A head with a line of its own would be another event, of any message.
      local others, own = string.gsub('\n' .. table.concat(heads, '\n'), '\nq1 [^\n]*', '')
      if others ~= '' or own ~= number then return nil end
      rows = book.rows('sent - - - - -', heads)
      if not rows then return nil end
    end
    pushed = redis.pcall('RPUSH', ready, unpack(items))
  end
  if type(pushed) ~= 'number' then return nil end
  if place == stats then
    redis.call('HSET', stats, field, sequence .. ' ' .. now, 'sent', sent + number, 'stored', stored + number)
  else
    redis.call('HSET', producers, field, sequence .. ' ' .. now)
    redis.call('HSET', stats, 'sent', sent + number, 'stored', stored + number)
  end
  local degraded = 0
  if book then
    book.now = now_ms
    degraded = book.write(rows, '')
  end
  if not paused_out and number > 1 then
    local EIGHT = { '1', '1', '1', '1', '1', '1', '1', '1' }
    -- Up to eight tokens, as `ring` of lib/counters.lua leaves.
    local tokens = there % 2 == 0 and 0 or redis.pcall('LLEN', wake)
    local lacking = type(tokens) == 'number' and math.min(number, 8) - tokens
    if lacking and lacking > 0 then tokens = redis.pcall('RPUSH', wake, unpack(EIGHT, 1, lacking)) end
    if type(tokens) ~= 'number' then degraded = 1 end
  elseif there % 2 == 0 and not paused_out and pushed > 0 and type(redis.pcall('RPUSH', wake, '1')) ~= 'number' then
    degraded = 1
  end
  if asked == '' and degraded == 0 and not shards then return now end
  return { 'OK', number, now, degraded, shards }
end
local sent_alone = send_alone()
if sent_alone then return sent_alone end
