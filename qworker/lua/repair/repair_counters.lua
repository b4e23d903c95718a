#!lua flags=allow-oom
-- repair_counters.lua: compare counters, levels in use and journal numbers with the contents, and correct them.
-- ROLES      operator
-- KEYS       see lib/keys.lua; all leases of the queue
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    repair           1 to repair, 0 to report
-- Returns {'OK', now ms, busy: 1 if messages could not be counted (the leases changed), then three per problem: what,
--   the stored value, the correct value}, or {'BROKEN', key, type} {'ARG', name}. What: a counter's name, level, or journal.
-- O(l + c): l leases, c counters.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/keys.lua
--- include lib/lease.lua

local refused = broken({ meta, 'hash' }) or broken_queue(ALL_LEVELS)
if refused then return refused end
local now, repair = clock(ARGV[1], meta), ARGV[2] == '1'
if not now then return { 'ARG', 'now' } end
local reply, counted = { 'OK', text(now), 0 }, {}
local function tell(what, is, should)
  for _, word in ipairs({ what, is, should }) do reply[#reply + 1] = word end
end

-- A counter that is not a number fails each call that counts.
local flat = redis.call('HGETALL', stats)
for i = 1, #flat, 2 do
  local name, value = flat[i], flat[i + 1]
  counted[name] = string.find(value, '^%-?%d+$') and whole(value, -MAX_MS, MAX_MS) or false -- false: it exists but is not a number
  if not counted[name] and name ~= 'stored' and name ~= 'unacked' and not string.find(name, '^lane:') then
    tell(name, value, '')
    if repair then redis.call('HDEL', stats, name) end
  end
end

local function set(name, number)
  if counted[name] == number then return end
  if counted[name] == nil and number == 0 then return end
  tell(name, redis.call('HGET', stats, name) or '', text(number))
  if repair then redis.call('HSET', stats, name, text(number)) end
end

local all, in_hand = redis.call('ZCARD', unacked) == #KEYS - FIRST_LEASE + 1, 0
for i = FIRST_LEASE, #KEYS do
  all = all and redis.call('ZSCORE', unacked, lease_id(KEYS[i]) or '') and true
  in_hand = in_hand + count_held(KEYS[i])
end
if all then
  set('unacked', in_hand)
  -- As in recount.lua: items of other programs count only once they are received.
  local least = in_hand + redis.call('LLEN', suspect) + redis.call('ZCARD', delayed)
  local most = least
  for number = 0, 9 do most = most + redis.call('LLEN', ready(number)) end
  set('stored', math.max(least, math.min(counted.stored or least, most)))
else
  reply[3] = 1
end

local levels = redis.call('HGET', meta, 'levels') or ''
for number = 1, 9 do
  if redis.call('LLEN', ready(number)) > 0 and not string.find(levels, tostring(number), 1, true) then
    tell('level', levels, levels .. tostring(number))
    levels = levels .. tostring(number)
    if repair then
      redis.call('HSET', meta, 'levels', levels)
      redis.call('RPUSH', wake, '1') -- bounded by the next call that rings
    end
  end
end

-- An id that is not above the stream's last is refused and begins a new epoch, which readers would see as a gap.
local last = redis.call('XREVRANGE', journal, '+', '-', 'COUNT', 1)[1]
local epoch = whole(redis.call('HGET', meta, 'journal_epoch'), 1, MAX_MS)
if last and epoch and counted.journal_entries then
  local last_epoch, last_number = string.match(last[1], '^(%d+)%-(%d+)$')
  last_epoch, last_number = tonumber(last_epoch), tonumber(last_number)
  local ours = last[2][1] == 'n' and last[2][3] == 'k' and last[2][5] == 'b' and last[2][11] == 'e1'
  local n, k = whole(last[2][2], 0, MAX_MS), whole(last[2][4], 0, MAX_MS)
  local behind = epoch < last_epoch or epoch == last_epoch and counted.journal_entries <= last_number
  if behind then
    tell('journal', text(epoch) .. '-' .. text(counted.journal_entries), last[1])
    if repair and ours and n and k then
      local bytes = (whole(last[2][6], 0, MAX_MS) or 0) + #last[2][12] + 64
      redis.call('HSET', meta, 'journal_epoch', text(last_epoch))
      redis.call('HSET', stats, 'journal_entries', text(last_number + 1), 'journal_events',
        text(math.max(n + k, epoch == last_epoch and counted.journal_events or 0)), 'journal_written', text(bytes))
    elseif repair then
      redis.call('HDEL', stats, 'journal_entries') -- the next entry begins a new epoch, above the stream's
    end
  end
end
return reply
