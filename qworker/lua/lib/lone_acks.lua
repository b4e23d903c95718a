-- The short way to ack messages that were delivered alone, without a journal. It runs before the functions of the long
-- way are created, and checks only the keys that it writes. Every other call takes the long way; nothing is written by then.

local LEASE_ID = ':lease:([%w._-]+)$'

-- Whether ARGV, from `at` on (see lib/outcomes.lua), acks index 0 of each lease and has no other outcome, and no journal
-- groups.
local function acks_alone(at, leases)
  if leases == 0 then return ARGV[at] == '0' and #ARGV == at end
  local all = leases == 1 and '1 1 0 0 0 0' or leases .. string.rep(' 1 0 0 0 0', leases)
  return #ARGV == at + 5 * leases and table.concat(ARGV, ' ', at) == all
end

-- The ids of the leases if all of these acks count: a lease has field 0 and no other. Else nil.
local function held_alone(leases)
  local ids = {}
  for i = 1, leases do
    local key = KEYS[20 + i]
    local fields = redis.pcall('HKEYS', key)
    ids[i] = string.match(key, LEASE_ID)
    if fields[1] ~= '0' or fields[2] or not ids[i] then return nil end
  end
  return ids
end

-- The numbers in a reply of HMGET, 0 for a missing one; nil if one is not a whole number.
local function counters(found)
  local a, b, c, d = tonumber(found[1] or 0), tonumber(found[2] or 0), tonumber(found[3] or 0), tonumber(found[4] or 0)
  if found.err or not a or not b or not c or not d or (a + b + c + d) % 1 ~= 0 then return nil end
  return a, b, c, d
end
