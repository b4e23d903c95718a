#!lua flags=allow-oom
-- mark.lua: open a shard for sends, or drain it, following a division of its queue.
-- ROLES      producer, daemon, operator
-- KEYS[1]    meta HASH        of the shard
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    state            open, or draining
-- ARGV[3]    active           of the division, 1-64
-- ARGV[4]    epoch            of the division; the mark of a later one stays
-- ARGV[5]…   attribute, value pairs: of the queue, for a shard without attributes
-- Returns {'OK', now ms, mark} as stored now, or a refusal: {'BROKEN', key, type} {'ARG', name}
-- O(a): a attributes.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/shards.lua

local meta = KEYS[1]
local refused = broken({ meta, 'hash' })
if refused then return refused end
local now = clock(ARGV[1], meta)
local active, epoch = whole(ARGV[3], 1, MAX_SHARDS), whole(ARGV[4], 0, MAX_MS)
if not now or ARGV[2] ~= 'open' and ARGV[2] ~= 'draining' then return { 'ARG', 'state' } end
if not active or not epoch or #ARGV % 2 ~= 0 then return { 'ARG', 'shards' } end

local stands = redis.call('HGET', meta, 'shard') or ''
local stands_epoch = string.match(stands, '^%a+ %d+ (%d+)$')
if stands_epoch and epoch_of(stands_epoch, now) > epoch then return { 'OK', text(now), stands } end
local mark = string.format('%s %d %.0f', ARGV[2], active, epoch)
if redis.call('HSETNX', meta, 'created_ms', text(now)) == 1 then
  for i = 5, #ARGV, 2 do redis.call('HSET', meta, ARGV[i], ARGV[i + 1]) end
  redis.call('HSET', meta, 'modified_ms', text(now))
end
if mark ~= stands then redis.call('HSET', meta, 'shard', mark) end
return { 'OK', text(now), mark }
