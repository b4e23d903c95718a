-- The short way to ack messages that were delivered alone, without a journal. It runs before the functions of the long
-- way are created, and checks only the keys that it writes. Every other call takes the long way; nothing is written by then.

-- Whether ARGV, from `at` on (see lib/outcomes.lua), acks index 0 of each lease and has no other outcome, and no journal
-- groups. `prefix` is that of the keys of leases.
local function acks_alone(at, prefix, leases)
  if tonumber(ARGV[at]) ~= leases or #ARGV ~= at + 5 * leases then return false end
  for i = 1, leases do
    local first = at + 5 * i - 4
    if ARGV[first] ~= '1' or ARGV[first + 1] ~= '0' or ARGV[first + 2] ~= '0' or ARGV[first + 3] ~= '0' or ARGV[first + 4] ~= '0'
      or string.sub(KEYS[20 + i], 1, #prefix) ~= prefix then
      return false
    end
  end
  return true
end

-- Whether each lease has one field. If that is a batch, HDEL removes nothing.
local function have_one_field(leases)
  for i = 1, leases do
    if redis.pcall('HLEN', KEYS[20 + i]) ~= 1 then return false end
  end
  return true
end

-- Delete the messages; `counted` of them are already in `acked`. Returns 1 or 0 per lease, and 1 if a counter failed.
local function ack_alone(leases, prefix, counted, received)
  local unacked, stats, held, settled, degraded = KEYS[13], KEYS[17], 0, {}, 0
  for i = 1, leases do
    local key = KEYS[20 + i]
    settled[i] = redis.call('HDEL', key, '0')
    held = held + settled[i]
    if settled[i] == 1 then redis.call('ZREM', unacked, string.sub(key, #prefix + 1)) end
  end
  local function count_up(name, amount)
    if amount ~= 0 and type(redis.pcall('HINCRBY', stats, name, amount)) ~= 'number' then degraded = 1 end
  end
  count_up('acked', held - counted)
  count_up('stored', -held)
  count_up('stale', leases - held)
  count_up('unacked', received - held)
  return settled, degraded
end
