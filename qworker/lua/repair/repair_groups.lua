#!lua flags=allow-oom
-- repair_groups.lua: count the slots of groups again, a page of groups a call, and let those run that may.
-- ROLES      operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    repair           1 to repair, 0 to report
-- ARGV[3]    cursor           of groups: 0 at first, then that of the last call
-- Returns {'OK', now ms, next cursor or '0' at the end, why not all was checked: '' or large (over 10,000 slots), then per
--   problem its kind (slot: its message is gone; busy: another number is in flight; seat: none of its messages waits, and it
--   has seats; turn: the group may run and has no turn), the group, and in words what is wrong}, or {'BROKEN', key, type}
--   {'ARG', name}
-- O(s + d): s slots, d suspects and delayed messages; 150 groups.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/keys.lua
--- include lib/envelope.lua
--- include lib/group_records.lua
--- include lib/groups.lua
--- include lib/group_writes.lua
--- include lib/group_lines.lua
--- include lib/group_limits.lua
--- include lib/group_members.lua
--- include lib/packed_slots.lua
--- include lib/group_slots.lua
--- include lib/group_pages.lua
--- include lib/lease.lua

local MAX_READ, MAX_BYTES, SEATS_FROM = 10000, 8388608, '4503599627370496'
local refused = broken({ meta, 'hash', wake, 'list', unacked, 'zset', delayed, 'zset', suspect, 'list' }) or groups().broken()
if refused then return refused end
local now, repair, cursor = clock(ARGV[1], meta), ARGV[2] == '1', whole(ARGV[3], 0, 18446744073709551615)
if not now or not cursor then return { 'ARG', 'cursor' } end
local base, reply = string.sub(meta, 1, -5), { 'OK', text(now), '0', '' }
local function tell(kind_of, name, words)
  for _, word in ipairs({ kind_of, name, words }) do reply[#reply + 1] = word end
end
local slots = base .. 'slots'
if redis.call('HLEN', slots) > MAX_READ then return { 'OK', text(now), '0', 'large' } end

-- The ids of messages that may keep a slot while they wait; nil if they are too many, or over 8 MiB.
local function waiting_ids()
  if redis.call('ZCOUNT', delayed, '-inf', '(' .. SEATS_FROM) + redis.call('LLEN', suspect) > MAX_READ then return nil end
  local seen, noted, bytes = {}, 0, 0
  local function note_all(read)
    local from, more = 0, true
    while more and bytes <= MAX_BYTES do
      local chunk = read(from, chunk_size(noted, bytes, MAX_BYTES - bytes))
      for _, item in ipairs(chunk) do
        seen[string.match(item, '^q1 (%S+)') or ''] = true
        noted, bytes = noted + 1, bytes + #item
      end
      from, more = from + #chunk, #chunk > 0
    end
  end
  local function note_scores(low, high)
    note_all(function(from, number)
      return redis.call('ZRANGE', delayed, low, high, 'BYSCORE', 'LIMIT', from, math.min(number, MAX_READ - from))
    end)
  end
  note_all(function(from, number) return redis.call('LRANGE', suspect, from, from + number - 1) end)
  note_scores('-inf', '(' .. SEATS_FROM)
  note_scores(text(MAX_MS), '+inf')
  return bytes <= MAX_BYTES and seen or nil
end

local function is_held(lease, index)
  if not redis.call('ZSCORE', unacked, lease) then return false end
  local key = base .. 'lease:' .. lease
  if redis.pcall('HEXISTS', key, index) == 1 then return true end
  return (tonumber(index) or 0) >= 1 and (batch_size(key) or 0) >= tonumber(index)
end

-- The slots, {token, group, …}; nil if they are too many. Those of batches are looked at one by one.
local function read_slots()
  local found, flat = redis.call('HGETALL', slots), {}
  for i = 1, #found, 2 do
    local names = not string.find(found[i], ':', 1, true) and packed_slots.read(slots, found[i])
    if not names then flat[#flat + 1], flat[#flat + 2] = found[i], found[i + 1] end
    for index, name in ipairs(names or {}) do
      if name then flat[#flat + 1], flat[#flat + 2] = found[i] .. ':' .. index, name end
    end
    if #flat > 2 * MAX_READ then return nil end
  end
  return flat
end

local flat = read_slots()
if not flat then return { 'OK', text(now), '0', 'large' } end
local ids, ids_read, any_gone = nil, false, false
for i = 1, #flat, 2 do
  local token, name = flat[i], groups().name_of(flat[i + 1])
  local lease, index = string.match(token, '^([^:]+):(.*)$')
  local there = lease and is_held(lease, index)
  if not lease then
    if not ids_read then ids, ids_read = waiting_ids(), true end
    there = not ids or ids[string.sub(token, 2)]
  end
  if not there then
    tell('slot', name, 'its message is gone: ' .. token)
    any_gone = true
    if repair then
      if lease then groups().loosen(lease) end
      redis.call('HDEL', slots, token)
    end
  end
end
-- To take one out of a batch may let groups count the others.
if repair and any_gone then flat = read_slots() end
local busy = {}
for i = 1, #flat, 2 do
  local slot = flat[i + 1]
  if string.byte(slot) ~= 1 then
    local name, parent = groups().name_of(slot), string.byte(slot) ~= 2 and groups().parent_of(slot)
    busy[name] = (busy[name] or 0) + 1
    if parent then busy[parent] = (busy[parent] or 0) + 1 end
  end
end
local next_cursor, opened = groups().recount(ARGV[3], busy, repair, tell)
if opened > 0 then ring(wake, opened) end
reply[3] = next_cursor
return reply
