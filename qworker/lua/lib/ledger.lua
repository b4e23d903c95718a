-- The ledger of a bulk write: what has been taken from each stream, a stream being rows in an order that every
-- repetition has (a partition's rows of one priority).
--   HASH   <stream> → `<rows> <crc>`   ·   stored → messages of all runs   ·   run:<run> → messages of one run
--   In a divided queue: shards → over how many the write is spread   ·   <stream> → `moved`, its rest is in the first shard
-- The CRC runs over all rows of the stream so far. A chunk says the CRC before and behind it, and is taken only
-- where the ledger stands at its beginning with the same CRC: so each chunk proves every row before it, two
-- simultaneous attempts cannot double a row, and rows that came in another order are noticed before anything of theirs
-- is stored.

-- Nil where the chunk is to be taken now; else a reply: taken before, a gap before it, or other rows than before.
local function standing(ledger, stream, first, number, crc_before, crc_after)
  local rows, crc = string.match(redis.call('HGET', ledger, stream) or '0 0', '^(%d+) (%d+)$')
  rows = tonumber(rows)
  if not rows then return { 'CHANGED', '0' } end
  local last = first + number
  if last < rows or last == rows and crc == crc_after then return { 'DUPLICATE' } end
  if first > rows then return { 'GAP', text(rows) } end
  if first < rows or crc ~= crc_before then return { 'CHANGED', text(rows) } end
  return nil
end

local function note(ledger, stream, rows, crc, run, stored, kept_ms)
  if stream ~= '' then redis.call('HSET', ledger, stream, text(rows) .. ' ' .. crc) end
  redis.call('HINCRBY', ledger, 'stored', stored)
  redis.call('HINCRBY', ledger, 'run:' .. run, stored)
  redis.call('PEXPIRE', ledger, text(kept_ms))
end
