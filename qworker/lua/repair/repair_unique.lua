#!lua flags=allow-oom
-- repair_unique.lua: find unique keys held by messages that are not in the queue, and free them.
-- ROLES      operator
-- KEYS       see lib/keys.lua; all leases of the queue
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    repair           1 to repair, 0 to report
-- ARGV[3]…   key, value       1-100 pairs, as `unique` had them
-- Returns {'OK', now ms, '', 1 per pair whose holder is gone, else 0} or, if it was not checked, {'OK', now ms, why}:
--   busy (the leases changed) or large (over 10,000 messages, or 8 MiB); or {'BROKEN', key, type} {'ARG', name}
-- O(n): n messages of the queue.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/keys.lua
--- include lib/lease.lua

local MOST, MAX_BYTES, READ_CHUNK, FIRST_PAIR = 10000, 8388608, 32, 3
local refused = broken({ meta, 'hash' }) or broken_queue(ALL_LEVELS)
if refused then return refused end
local now, repair = clock(ARGV[1], meta), ARGV[2] == '1'
if not now or #ARGV > 202 or #ARGV % 2 == 1 then return { 'ARG', 'now or pairs' } end
if redis.call('ZCARD', unacked) ~= #KEYS - FIRST_LEASE + 1 then return { 'OK', text(now), 'busy' } end
for i = FIRST_LEASE, #KEYS do
  if not redis.call('ZSCORE', unacked, lease_id(KEYS[i]) or '') then return { 'OK', text(now), 'busy' } end
end
local total, bytes, seen = redis.call('ZCARD', delayed) + redis.call('LLEN', suspect), 0, {}
for number = 0, 9 do total = total + redis.call('LLEN', ready(number)) end
for i = FIRST_LEASE, #KEYS do total = total + count_held(KEYS[i]) end
if total > MOST then return { 'OK', text(now), 'large' } end

local function note(items)
  for _, item in ipairs(items) do
    bytes = bytes + #item
    local id = string.match(item, '^q%d+ (%S+)')
    if id then seen[id] = true end
  end
end
local function note_all(read)
  local from, chunk = 0, nil
  repeat
    chunk = read(from, from + READ_CHUNK - 1)
    note(chunk)
    from = from + READ_CHUNK
  until #chunk < READ_CHUNK or bytes > MAX_BYTES
end
note_all(function(from, to) return redis.call('LRANGE', suspect, from, to) end)
for number = 0, 9 do note_all(function(from, to) return redis.call('LRANGE', ready(number), from, to) end) end
note_all(function(from, to) return redis.call('ZRANGE', delayed, from, to) end)
for i = FIRST_LEASE, #KEYS do
  local held = {}
  for _, entry in ipairs(bytes <= MAX_BYTES and read_lease(KEYS[i]) or {}) do held[#held + 1] = entry[2] end
  note(held)
end
if bytes > MAX_BYTES then return { 'OK', text(now), 'large' } end

local reply = { 'OK', text(now), '' }
for i = FIRST_PAIR, #ARGV, 2 do
  local key, value = ARGV[i], ARGV[i + 1]
  local gone = redis.call('HGET', unique, key) == value and not seen[string.match(value, '^%S+') or '']
  if gone and repair then redis.call('HDEL', unique, key) end
  reply[#reply + 1] = gone and 1 or 0
end
return reply
