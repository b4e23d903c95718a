-- The ledger of a bulk write: how far each stream was stored. A stream is rows in the same order in every attempt (a
-- partition's rows of one priority).
--   HASH   <stream> → `<rows> <crc>`   ·   stored → messages of all runs   ·   run:<run> → messages of one run
--   In a divided queue: shards → how many the write is spread over   ·   <stream> → `moved`: the rest is in the first shard
-- The CRC covers all rows of the stream so far. A chunk brings the CRC before and after it, and is stored only if the
-- ledger is at its beginning with the same CRC. So each chunk proves every row before it, two simultaneous attempts
-- cannot store a row twice, and rows in another order are noticed before any of them is stored.

-- Nil if the chunk is to be stored now; else a reply: stored before, a gap before it, other rows than before, or that its
-- rest is in the first shard.
local function standing(ledger, stream, first, number, crc_before, crc_after)
  local position = redis.call('HGET', ledger, stream) or '0 0'
  if position == 'moved' then return { 'RESHARD', '' } end
  local rows, crc = string.match(position, '^(%d+) (%d+)$')
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
