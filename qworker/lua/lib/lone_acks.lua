-- The short way to ack messages that were delivered alone, where no journal is on. It begins before the functions of the long
-- way are made, and asks only of the keys that it writes. What is not so goes the long way, nothing being written by then.

-- Whether ARGV, from `at` on (see lib/outcomes.lua), acks index 0 of each of so many leases and has no other outcome, nor
-- anything for the journal. `prefix` is that of the keys of leases.
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

-- Whether each lease has one field. It may hold a batch in it: then HDEL takes nothing.
local function have_one_field(leases)
  for i = 1, leases do
    if redis.pcall('HLEN', KEYS[20 + i]) ~= 1 then return false end
  end
  return true
end

-- Take the messages out; `counted` of them stand in `acked` already. Returns 1 or 0 per lease, and 1 where a counter failed.
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
