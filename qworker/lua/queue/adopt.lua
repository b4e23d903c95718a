#!lua flags=allow-oom
-- adopt.lua: restore a division that a queue lost in a failover, from the mark of one of its shards.
-- ROLES      producer, consumer, daemon, operator
-- KEYS[1]    meta HASH        of the queue
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    active           of the mark, 1-64
-- ARGV[3]    kept             minimum number of shards that may hold messages; active-64
-- ARGV[4]    epoch            of the mark; ignored if older than the queue's, or in the future
-- Returns {'OK', now ms, changed 1 or 0, active, kept, epoch} as stored now, or refused: {'BROKEN', key, type} {'ARG', name}
-- O(1).
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/shards.lua

local meta = KEYS[1]
local refused = broken({ meta, 'hash' })
if refused then return refused end
local now = clock(ARGV[1], meta)
local active, given = whole(ARGV[2], 1, MAX_SHARDS), whole(ARGV[4], 0, MAX_MS)
local kept = active and whole(ARGV[3], active, MAX_SHARDS)
if not now or not kept or not given then return { 'ARG', 'shards' } end

local stands_active, stands_kept, stands_epoch = read_shards(meta, now)
local epoch = epoch_of(given, now)
if epoch <= stands_epoch then
  return { 'OK', text(now), 0, stands_active, stands_kept, text(stands_epoch) }
end
kept = math.max(kept, stands_kept)
write_shards(meta, active, kept, epoch)
return { 'OK', text(now), 1, active, kept, text(epoch) }
