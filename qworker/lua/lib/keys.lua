-- The keys of a queue as consumers and reapers declare them, in this order in KEYS:
--   1-10 ready … ready:9 LIST · 11 suspect LIST · 12 delayed ZSET · 13 unacked ZSET · 14 wake LIST
--   15 dead STREAM · 16 meta HASH · 17 stats HASH · 18 unique HASH · 19 cancelled ZSET · 20 journal STREAM
-- and from 21 on the leases (HASH) of the call.
local suspect, delayed, unacked, wake, dead = KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local meta, stats, unique, cancelled, journal = KEYS[16], KEYS[17], KEYS[18], KEYS[19], KEYS[20]
local FIRST_LEASE = 21
local has_groups = false -- of the queue, once its attributes are read; see lib/groups.lua
local ALL_LEVELS = { 9, 8, 7, 6, 5, 4, 3, 2, 1, 0 } -- as `levels_in_use` has them

local function ready(level_number)
  return KEYS[level_number + 1]
end

local function lease_id(key)
  return string.match(key, '}:lease:([%w._-]+)$')
end

-- Priority levels in use, highest first. Level 0 is always one of them.
local function levels_in_use(levels)
  local used = {}
  for number = 9, 1, -1 do
    if levels and string.find(levels, tostring(number), 1, true) then used[#used + 1] = number end
  end
  used[#used + 1] = 0
  return used
end

-- A refusal if a key that this call may write holds another type, else nil. The last of `levels` is the likeliest.
-- `without_bell`: a doorbell of another type does not stop the call, which cannot ring then.
local function broken_queue(levels, without_leases, without_bell)
  local expected = { stats, 'hash', unacked, 'zset' }
  local function expect(key, its_type)
    expected[#expected + 1] = key
    expected[#expected + 1] = its_type
  end
  for i = FIRST_LEASE, without_leases and 0 or #KEYS do expect(KEYS[i], 'hash') end
  local base = string.sub(meta, 1, -5)
  if has_groups then
    -- Their members are most likely all that waits.
    expect(base .. 'groups', 'hash')
    expect(base .. 'slots', 'hash')
    expect(delayed, 'zset')
    expect(base .. 'turns', 'zset')
    expect(base .. 'limits', 'hash')
    expect(base .. 'children', 'zset')
    expect(base .. 'later', 'zset')
  end
  expect(ready(levels[#levels]), 'list')
  if not without_bell then expect(wake, 'list') end
  for i = #levels - 1, 1, -1 do expect(ready(levels[i]), 'list') end
  if not has_groups then expect(delayed, 'zset') end
  expect(journal, 'stream')
  expect(dead, 'stream')
  expect(suspect, 'list')
  expect(unique, 'hash')
  expect(cancelled, 'zset')
  return broken(expected)
end
