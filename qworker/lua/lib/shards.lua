-- How a queue is divided, according to its `meta`: field `shards`, `<active> <kept> <epoch>`; `shards_asked` is the number
-- that an operator asked for last, which tells an older call that is still waiting to stop. Each shard except the first
-- has a mark in its `meta`, field `shard`, `<open or draining> <active> <epoch>`: the division that opened or drained it.

local MAX_SHARDS = 64
-- Epochs are times in ms, and grow with every division. No division makes one in the future of the
-- server's clock: such an epoch is ignored.
local AHEAD_MS = 3600000

local function epoch_of(digits, now)
  local epoch = whole(digits, 0, MAX_MS)
  return epoch and epoch <= now + AHEAD_MS and epoch or 0
end

-- Returns active, kept and epoch: 1 1 0 for a queue that was never divided, or whose field is malformed.
local function read_shards(meta, now)
  local active, kept, epoch = string.match(redis.call('HGET', meta, 'shards') or '', '^(%d+) (%d+) (%d+)$')
  active = whole(active, 1, MAX_SHARDS)
  kept = active and whole(kept, active, MAX_SHARDS)
  if not kept then return 1, 1, 0 end
  return active, kept, epoch_of(epoch, now)
end

local function write_shards(meta, active, kept, epoch)
  redis.call('HSET', meta, 'shards', string.format('%d %d %.0f', active, kept, epoch))
end
