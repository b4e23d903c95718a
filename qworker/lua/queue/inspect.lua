#!lua flags=no-writes
-- inspect.lua: the sizes, ages, counters and attributes of a queue at one instant.
-- ROLES      consumer, daemon, operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- Returns {'OK', now ms, {ready per level 0-9}, suspects, delayed, leases, dead, since when the oldest has been ready in ms
--   or '', next due ms or '', next deadline ms or '', waiting tokens, {stats}, {meta}, journal entries, journal bytes,
--   held (of the delayed), waiting in groups (of the delayed)}
--   or {'BROKEN', key, type} {'ARG', name}. The oldest is taken from a few items of each list: a message returned to the
--   head must not hide older ones behind it; of groups, the first ones of 32. At most 1 MiB of messages is read.
-- O(1) but for the counters and attributes.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/keys.lua
--- include lib/envelope.lua

local refused = broken({ meta, 'hash' }) or broken_queue(ALL_LEVELS)
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now then return { 'ARG', 'now' } end
local PLACES, MAX_BYTES = { 0, 10, 100, 1000, -1 }, 1048576
local lengths, oldest_ms, bytes = {}, nil, 0
local function look_at(item)
  bytes = bytes + (item and #item or 0)
  local message = item and kind(item) == 'own' and parse(item)
  local since_ms = message and (number_in(message.flags, ' t=') or tonumber(message.sent))
  if since_ms and (not oldest_ms or since_ms < oldest_ms) then oldest_ms = since_ms end
end
local function look(key)
  local length = redis.call('LLEN', key)
  if length == 0 then return 0 end -- the usual case: a scrape reads thousands of queues
  for _, place in ipairs(PLACES) do
    look_at(place < length and bytes < MAX_BYTES and redis.call('LINDEX', key, place))
  end
  return length
end
local suspects = look(suspect)
-- Few queues use a level other than 0: one EXISTS for all of them.
local leveled = redis.call('EXISTS', unpack(KEYS, 2, 10)) > 0
for number = 0, 9 do lengths[number + 1] = (number == 0 or leveled) and look(ready(number)) or 0 end
local stored = redis.call('XLEN', journal)
local written = stored > 0 and whole(redis.call('HGET', stats, 'journal_written'), 0, MAX_MS) or 0
local first_entry = stored > 0 and redis.call('XRANGE', journal, '-', '+', 'COUNT', 1)[1]
local journal_bytes = math.max(0, written - (first_entry and whole(first_entry[2][6], 0, MAX_MS) or written))
local function first_score(key, number)
  if number == 0 then return '' end
  local score = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  return score and text(tonumber(score)) or ''
end
local attributes = redis.call('HGETALL', meta)
for i = 1, #attributes, 2 do has_groups = has_groups or attributes[i] == 'groups' end
refused = has_groups and broken_queue(ALL_LEVELS)
if refused then return refused end
local delays, leases = redis.call('ZCARD', delayed), redis.call('ZCARD', unacked)
-- Members of groups that wait: their scores are seats, see lib/groups.lua.
local SEATS_FROM, SEATS, HEADS = 4503599627370496, 2147483648, 32
local grouped = has_groups and delays > 0 and redis.call('ZCOUNT', delayed, text(SEATS_FROM), '(' .. text(MAX_MS)) or 0
local from = SEATS_FROM
for _ = 1, math.min(grouped, HEADS) do
  if bytes >= MAX_BYTES then break end
  local first = redis.call('ZRANGE', delayed, text(from), '(' .. text(MAX_MS), 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  if not first[1] then break end
  look_at(first[1])
  -- The seats of the next group.
  from = SEATS_FROM + (math.floor((tonumber(first[2]) - SEATS_FROM) / SEATS) + 1) * SEATS
end
return {
  'OK', text(now), lengths, suspects, delays, leases, redis.call('XLEN', dead), oldest_ms and text(oldest_ms) or '',
  first_score(delayed, delays), first_score(unacked, leases), redis.call('LLEN', wake),
  redis.call('HGETALL', stats), attributes, stored, text(journal_bytes),
  delays > 0 and redis.call('ZCOUNT', delayed, text(MAX_MS), '+inf') or 0, grouped,
}
