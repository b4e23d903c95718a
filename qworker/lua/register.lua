#!lua flags=allow-oom
-- register.lua: write a queue into the registry, with the shards that it has, and learn what stands there.
-- KEYS[1]    queues HASH      queue → shards, or `<active> <kept> <epoch>`; a shard beside the first one → 1
-- ARGV[1]    queue
-- ARGV[2]    active           shards that messages are sent to, 1-64, as the caller knows it
-- ARGV[3]    kept             shards that may hold messages, active-64
-- ARGV[4]    epoch            of that knowledge; the higher one stands, and of two alike the greater `kept`
-- Returns {'OK', active, kept, epoch} as they stand, or a refusal: {'BROKEN', key, type} {'ARG', name}
-- O(kept).
--- include lib/checks.lua

local queues, queue = KEYS[1], ARGV[1]
local refused = broken({ queues, 'hash' })
if refused then return refused end
local MOST, LAST_EPOCH = 64, 999999999999999
local active = whole(ARGV[2], 1, MOST)
local kept, epoch = active and whole(ARGV[3], active, MOST), whole(ARGV[4], 0, LAST_EPOCH)
if not kept or not epoch then return { 'ARG', 'shards' } end

local stands = redis.call('HGET', queues, queue) or ''
local known_active, known_kept, known_epoch = string.match(stands, '^(%d+) (%d+) (%d+)$')
known_active = whole(known_active or stands, 1, MOST)
known_kept, known_epoch = whole(known_kept or known_active, 1, MOST), whole(known_epoch or 0, 0, LAST_EPOCH)
if known_active and known_kept and known_epoch then
  if known_epoch > epoch then
    active, kept, epoch = known_active, known_kept, known_epoch
  elseif known_epoch == epoch then
    active, kept = math.max(active, known_active), math.max(kept, known_kept)
  end
end
local written = kept == 1 and epoch == 0 and '1' or string.format('%d %d %.0f', active, kept, epoch)
if written ~= stands then redis.call('HSET', queues, queue, written) end
for shard = 1, kept - 1 do redis.call('HSETNX', queues, queue .. '/' .. shard, 1) end
return { 'OK', active, kept, string.format('%.0f', epoch) }
