#!lua flags=allow-oom
-- purge.lua: delete messages of one state, the oldest first. Unacked messages are not touched.
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    state            ready (suspects included), delayed or dead
-- ARGV[3]    limit            messages, 1-1000
-- Returns {'OK', now ms, purged}; fewer than the limit means that none is left;
--   or {'BROKEN', key, type} {'ARG', name}
-- O(k): k purged.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/keys.lua
--- include lib/envelope.lua
--- include lib/ends.lua

local refused = broken({ meta, 'hash' })
if refused then return refused end
local attributes = read_attributes()
refused = broken_queue(attributes.levels)
if refused then return refused end
local now, state, limit = clock(ARGV[1], meta), ARGV[2], whole(ARGV[3], 1, 1000)
if not now or not limit then return { 'ARG', 'limit' } end

local purged, own = 0, 0
-- A unique key is freed with its message; without unique keys nothing is read.
local keyed = redis.call('EXISTS', unique) == 1

local function forget(items)
  for _, item in ipairs(items) do
    if kind(item) == 'own' then
      own = own + 1
      if keyed then free_unique_of(item) end
    end
  end
  purged = purged + #items
end

local function purge_list(key)
  local items = redis.call('LRANGE', key, 0, limit - purged - 1)
  forget(items)
  if #items > 0 then redis.call('LTRIM', key, #items, -1) end
end

if state == 'ready' then
  purge_list(suspect)
  for _, number in ipairs(attributes.levels) do
    if purged < limit then purge_list(ready(number)) end
  end
elseif state == 'delayed' then
  forget(redis.call('ZRANGE', delayed, 0, limit - 1))
  if purged > 0 then redis.call('ZREMRANGEBYRANK', delayed, 0, purged - 1) end
elseif state == 'dead' then
  local entries = redis.call('XRANGE', dead, '-', '+', 'COUNT', limit)
  for _, entry in ipairs(entries) do redis.call('XDEL', dead, entry[1]) end
  purged = #entries
else
  return { 'ARG', 'state' }
end
count(stats, { purged = purged, stored = -own })
return { 'OK', text(now), purged }
