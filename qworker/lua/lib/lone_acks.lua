-- The short way to ack messages. It runs before the functions of the long way are created, and checks only the keys that it
-- writes. Every other call takes the long way; nothing is written by then.

local LEASE_ID = '}:lease:([%w._-]+)$'

-- Whether ARGV, from `at` on (see lib/outcomes.lua), acks index 0 of each lease and has no other outcome, and no journal
-- groups.
local function acks_alone(at, leases)
  if leases == 0 then return ARGV[at] == '0' and #ARGV == at end
  local all = leases == 1 and '1 1 0 0 0 0' or leases .. string.rep(' 1 0 0 0 0', leases)
  return #ARGV == at + 5 * leases and table.concat(ARGV, ' ', at) == all
end

-- The ids of the leases if all of these acks count: a lease has field 0 and no other, and is named once. Else nil.
local function held_alone(leases)
  local ids = {}
  for i = 1, leases do
    local key = KEYS[20 + i]
    local fields, id = redis.pcall('HKEYS', key), string.match(key, LEASE_ID)
    if fields[1] ~= '0' or fields[2] or not id or ids[key] then return nil end
    ids[i] = id
    if leases > 1 then ids[key] = true end
  end
  return ids
end

-- The numbers in a reply of HMGET, 0 for a missing one; nil if one is not a whole number.
local function counters(found)
  local a, b, c, d = tonumber(found[1] or 0), tonumber(found[2] or 0), tonumber(found[3] or 0), tonumber(found[4] or 0)
  if found.err or not a or not b or not c or not d or (a + b + c + d) % 1 ~= 0 then return nil end
  return a, b, c, d
end

-- Acks of messages that were delivered together, from `at` on in ARGV: nil for anything but acks by index or `*`. Else
-- functions: `held` reads, `take` writes; and `told`, the journal groups per lease: {text, number of events, …}, and the
-- `number` of events of all.
local function acks_by_index(at, leases)
  local first, number, acks = {}, {}, { told = {} }
  if ARGV[at] ~= tostring(leases) then return nil end
  local function told_at(place)
    local groups, told = tonumber(ARGV[place]), { number = 0 }
    local last = place + 2 * (groups or 0)
    if not groups or groups < 1 or groups > 10000 or groups % 1 ~= 0 or #ARGV < last then return nil end
    for i = place + 1, last, 2 do
      local events, group = tonumber(ARGV[i]), ARGV[i + 1]
      if not events or events < 1 or events > 10000 or events % 1 ~= 0 or #group > 16384 then return nil end
      told[#told + 1], told[#told + 2], told.number = group, events, told.number + events
    end
    return told, last
  end
  for l = 1, leases do
    local n = tonumber(ARGV[at + 1])
    if ARGV[at + 1] ~= '*' and (not n or n < 1 or n > 1000 or n % 1 ~= 0) then return nil end
    first[l], number[l], at = at + 2, n, at + (n or 0) + 4
    if ARGV[at - 2] ~= '0' or ARGV[at - 1] ~= '0' then return nil end
    if ARGV[at] ~= '0' then
      acks.told[l], at = told_at(at)
      if not at then return nil end
    end
  end
  if #ARGV ~= at then return nil end

  -- The ids of the leases. Nil if one is named twice, or has messages in one field that are not all acked, which the long way
  -- takes apart.
  local whole_ones = {}
  function acks.held()
    local ids = {}
    for l = 1, leases do
      local key = KEYS[20 + l]
      local batch, id = redis.pcall('HGET', key, 'batch'), string.match(key, LEASE_ID)
      if not id or ids[key] or type(batch) == 'table' then return nil end
      ids[l] = id
      if leases > 1 then ids[key] = true end
      if batch then
        local head, high, low = string.byte(batch, 1, 3)
        local all, seen = head == 0xdc and low and high * 256 + low or head and head < 0xa0 and head - 0x90 or 0, {}
        if all < 1 or number[l] and all ~= number[l] then return nil end
        for i = first[l], first[l] + (number[l] or 0) - 1 do
          local index = tonumber(ARGV[i])
          if not index or index < 1 or index > all or index % 1 ~= 0 or seen[index] then return nil end
          seen[index] = true
        end
        whole_ones[l] = all
      elseif not number[l] then
        whole_ones[l] = redis.call('HLEN', key)
      end
    end
    return ids
  end

  -- Whether all of a lease is acked.
  function acks.is_whole(l) return whole_ones[l] ~= nil end

  -- How many messages are acked by their indices.
  function acks.named()
    local all = 0
    for l = 1, leases do all = all + (number[l] or 0) end
    return all
  end

  -- Take the messages out of their leases. Returns how many there were, how many of each lease, and the leases that are over.
  function acks.take(ids, stats)
    local done, settled, over = 0, {}, {}
    local asked = 0
    for l = 1, leases do
      local key, n = KEYS[20 + l], number[l] or whole_ones[l]
      if whole_ones[l] then
        settled[l] = redis.call('DEL', key) * n
        over[#over + 1] = ids[l]
      else
        settled[l] = redis.call('HDEL', key, unpack(ARGV, first[l], first[l] + n - 1))
        if redis.call('EXISTS', key) == 0 then over[#over + 1] = ids[l] end
      end
      done, asked = done + settled[l], asked + n
    end
    if asked > done then redis.pcall('HINCRBY', stats, 'stale', asked - done) end
    return done, settled, over
  end
  return acks
end

-- The fields in `slots` of the messages of leases, see lib/packed_slots.lua. Nil if `acks` is not of all of one, or if one has
-- no slots, or some that the records of groups count.
local function uncounted(slots, ids, acks)
  local asked, fields = {}, {}
  for i = 1, #ids do
    if acks and not acks.is_whole(i) then return nil end
    asked[2 * i - 1], asked[2 * i] = ids[i], ids[i] .. ':0'
  end
  if #ids == 0 then return fields end
  local found = redis.pcall('HMGET', slots, unpack(asked))
  for i = 1, #asked, 2 do
    local at = found[i] and i or i + 1
    if string.byte(found[at] or '') ~= 1 then return nil end
    fields[#fields + 1] = asked[at]
  end
  return fields
end
