#!lua flags=allow-oom
-- purge.lua: delete messages of one state, the oldest first. Unacked messages are not touched.
-- ROLES      operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    state            ready (suspects included), delayed or dead
-- ARGV[3]    limit            messages, 1-1000; a call also ends after 1 MiB
-- Returns {'OK', now ms, purged, more (1 if some may be left), degraded} or {'BROKEN', key, type} {'ARG', name}
-- O(k): k purged.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/keys.lua
--- include lib/attributes.lua
--- include lib/envelope.lua
--- include lib/journal_entries.lua
--- include lib/journal.lua
--- include lib/order.lua
--- include lib/group_records.lua
--- include lib/groups.lua
--- include lib/group_writes.lua
--- include lib/group_lines.lua
--- include lib/group_limits.lua
--- include lib/group_members.lua
--- include lib/packed_slots.lua
--- include lib/group_slots.lua
--- include lib/outbox.lua
--- include lib/ends.lua
--- include lib/requeue.lua
--- include lib/dead_letters.lua
--- include lib/dropped.lua

local MAX_BYTES = 1048576
local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(attributes.levels)
if refused then return refused end
local now, state, limit = clock(ARGV[1], meta), ARGV[2], whole(ARGV[3], 1, 1000)
if not now or not limit then return { 'ARG', 'limit' } end
open_journal(attributes.journal, now)
local purged, own, bytes = 0, 0, 0
-- A unique key is freed with its message; without unique keys nothing is read.
local keyed = redis.call('EXISTS', unique) == 1

-- Record the end of the items of a chunk, up to the bounds; returns how many.
local function forget(items)
  for i, item in ipairs(items) do
    if bytes >= MAX_BYTES then return i - 1 end
    record('purged', item, { reason = state })
    if kind(item) == 'own' and state ~= 'dead' then
      own = own + 1
      if keyed then free_unique_of(item) end
      if has_groups then groups().free_slot(item) end
      end_result(item, 'purged')
    elseif state == 'dead' then
      end_letter(item)
    end
    end_run_of(item)
    purged, bytes = purged + 1, bytes + #item
  end
  return #items
end

-- `read(from, number)` gives a chunk, `cut(number)` removes those items from the front.
local function purge_all(read, cut)
  local gone, chunk, before = 0, nil, bytes
  repeat
    chunk = read(gone, math.min(chunk_size(gone, bytes - before, MAX_BYTES - bytes), limit - purged))
    gone = gone + forget(chunk)
  until #chunk == 0 or purged >= limit or bytes >= MAX_BYTES
  if gone > 0 then cut(gone) end
end

local function purge_list(key)
  purge_all(
    function(from, number) return redis.call('LRANGE', key, from, from + number - 1) end,
    function(number) redis.call('LTRIM', key, number, -1) end)
end

-- Among the delayed messages are members of groups, from this score on: see lib/groups.lua.
local SEATS_FROM = '4503599627370496'
local function purge_scores(low, high)
  local gone = {}
  purge_all(
    function(from, number)
      local chunk = redis.call('ZRANGE', delayed, low, high, 'BYSCORE', 'LIMIT', from, number)
      for i, item in ipairs(chunk) do gone[from + i] = item end
      return chunk
    end,
    function(number)
      redis.call('ZREM', delayed, unpack(gone, 1, number))
      groups().leave_seats_of(gone)
    end)
end

if state == 'ready' then
  purge_list(suspect)
  for _, number in ipairs(attributes.levels) do
    if purged < limit and bytes < MAX_BYTES then purge_list(ready(number)) end
  end
  if has_groups and purged < limit and bytes < MAX_BYTES then purge_scores(SEATS_FROM, '(' .. text(MAX_MS)) end
elseif state == 'delayed' and has_groups then
  purge_scores('-inf', '(' .. SEATS_FROM)
  if purged < limit and bytes < MAX_BYTES then purge_scores(text(MAX_MS), '+inf') end
elseif state == 'delayed' then
  purge_all(
    function(from, number) return redis.call('ZRANGE', delayed, from, from + number - 1) end,
    function(number) redis.call('ZREMRANGEBYRANK', delayed, 0, number - 1) end)
elseif state == 'dead' then
  local ids = {}
  purge_all(
    function(from, number)
      local start, items = from > 0 and '(' .. ids[from] or '-', {}
      for i, entry in ipairs(redis.call('XRANGE', dead, start, '+', 'COUNT', number)) do
        ids[from + i], items[i] = entry[1], letter_field(entry, 'envelope')
      end
      return items
    end,
    function(number) redis.call('XDEL', dead, unpack(ids, 1, number)) end)
else
  return { 'ARG', 'state' }
end
if has_groups and groups().opened > 0 and not attributes.paused_out then ring(wake, groups().opened) end
local degraded = math.max(count(stats, { purged = purged, stored = -own }), write_journal(''))
return { 'OK', text(now), purged, (purged >= limit or bytes >= MAX_BYTES) and 1 or 0, degraded }
