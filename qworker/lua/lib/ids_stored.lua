-- Which messages a queue holds, for scripts that look for those that are gone. The call names all leases.

local MAX_IDS, MAX_BYTES, READ_CHUNK = 10000, 8388608, 32

-- The ids of ready, delayed and unacked messages, with `and_dead` of dead ones, too: id → true. Or nil and why not: `busy`
-- (the leases changed) or `large` (over 10,000 messages, or 8 MiB).
local function ids_stored(and_dead)
  if redis.call('ZCARD', unacked) ~= #KEYS - FIRST_LEASE + 1 then return nil, 'busy' end
  for i = FIRST_LEASE, #KEYS do
    if not redis.call('ZSCORE', unacked, lease_id(KEYS[i]) or '') then return nil, 'busy' end
  end
  local total, bytes, noted, seen = redis.call('ZCARD', delayed) + redis.call('LLEN', suspect), 0, 0, {}
  for number = 0, 9 do total = total + redis.call('LLEN', ready(number)) end
  for i = FIRST_LEASE, #KEYS do total = total + count_held(KEYS[i]) end
  if and_dead then total = total + redis.call('XLEN', dead) end
  if total > MAX_IDS then return nil, 'large' end

  local function note(items)
    for _, item in ipairs(items) do
      bytes = bytes + #item
      local id = string.match(item, '^q%d+ (%S+)')
      if id then seen[id] = true end
    end
  end
  -- How many to read next: bodies may be large, so the first one is read alone, and then as many as those before let fit.
  local function next_chunk()
    if noted == 0 then return 1 end
    return math.max(1, math.min(READ_CHUNK, math.ceil((MAX_BYTES - bytes) * noted / math.max(bytes, 1))))
  end
  local function note_all(read)
    local from, more = 0, true
    while more and bytes <= MAX_BYTES do
      local number = next_chunk()
      local chunk = read(from, from + number - 1)
      note(chunk)
      from, noted, more = from + number, noted + #chunk, #chunk == number
    end
  end
  note_all(function(from, to) return redis.call('LRANGE', suspect, from, to) end)
  for number = 0, 9 do note_all(function(from, to) return redis.call('LRANGE', ready(number), from, to) end) end
  note_all(function(from, to) return redis.call('ZRANGE', delayed, from, to) end)
  for i = FIRST_LEASE, #KEYS do
    local held = {}
    for _, entry in ipairs(bytes <= MAX_BYTES and read_lease(KEYS[i]) or {}) do held[#held + 1] = entry[2] end
    note(held)
    noted = noted + #held
  end
  local after = '-'
  while and_dead and after and bytes <= MAX_BYTES do
    local number = next_chunk()
    local entries = redis.call('XRANGE', dead, after, '+', 'COUNT', number)
    for _, entry in ipairs(entries) do note(entry[2]) end
    noted = noted + #entries
    after = #entries == number and '(' .. entries[#entries][1]
  end
  if bytes > MAX_BYTES then return nil, 'large' end
  return seen
end
