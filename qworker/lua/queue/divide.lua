#!lua flags=allow-oom
-- divide.lua: change the number of shards of a queue, unless another division came first.
-- ROLES      daemon, operator
-- KEYS[1]    meta HASH        of the queue, which is that of its first shard
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    epoch            of the division that the caller read; nothing changes if there is another by now
-- ARGV[3]    active           shards that accept messages from now on, 1-64
-- ARGV[4]    kept             shards that may hold messages, active-64
-- ARGV[5]    asked            nothing changes unless an operator asked for this number last (meta.shards_asked); '': upkeep
-- Returns {'OK', now ms, changed 1 or 0, active, kept, epoch} as stored now, or refused: {'ASKED', active} if an operator has
--   asked for another number since; {'BROKEN', key, type} {'ARG', name}
-- O(1).
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/shards.lua

local meta = KEYS[1]
local refused = broken({ meta, 'hash' })
if refused then return refused end
local now = clock(ARGV[1], meta)
local expected, active = whole(ARGV[2], 0, MAX_MS), whole(ARGV[3], 1, MAX_SHARDS)
local kept = active and whole(ARGV[4], active, MAX_SHARDS)
if not now or not expected or not kept then return { 'ARG', 'shards' } end

if ARGV[5] ~= '' and redis.call('HGET', meta, 'shards_asked') ~= ARGV[5] then
  return { 'ASKED', (read_shards(meta, now)) }
end
local stands_active, stands_kept, stands_epoch = read_shards(meta, now)
if stands_epoch ~= expected then
  return { 'OK', text(now), 0, stands_active, stands_kept, text(stands_epoch) }
end
local epoch = math.max(stands_epoch + 1, now)
write_shards(meta, active, kept, epoch)
return { 'OK', text(now), 1, active, kept, text(epoch) }
