#!lua flags=allow-oom
-- prune.lua: forget idle lanes, expired unique keys and row ids, a slice at a time, and look for tombstones that expire.
-- ROLES      daemon, operator
-- KEYS[1]    producers HASH   lane → last sequence number and ms, …
-- KEYS[2]    unique HASH      unique key → message id and expiry ms
-- KEYS[3]    rows HASH        row id → message id and expiry ms
-- KEYS[4]    cancelled ZSET   message id → expiry ms
-- KEYS[5]    meta HASH
-- KEYS[6]    stats HASH       `lane:<lane>` → as in producers, and counters
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    idle ms          a lane without a send for this long is forgotten
-- ARGV[3-5]  cursor           of producers, unique and rows: '0' to begin, '' to leave it out
-- Returns {'OK', now ms, next cursor of producers, of unique, of rows, until ms, forgotten}; a cursor is '' once all of its
--   hash has been seen; until is '', or the expiry up to which tombstones are to be forgotten after a walk through the queue:
--   their messages may still wait; or {'BROKEN', key, type} {'ARG', name}
-- O(1,250 + log c): c tombstones.
--- include lib/clock.lua
--- include lib/checks.lua

local producers, unique, rows, cancelled, meta, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local refused = broken({
  stats, 'hash', producers, 'hash', unique, 'hash', rows, 'hash', cancelled, 'zset', meta, 'hash',
})
if refused then return refused end
local now, idle_ms = clock(ARGV[1], meta), whole(ARGV[2], 1, MAX_MS)
if not now or not idle_ms then return { 'ARG', 'idle_ms' } end
for i = 3, 5 do
  if not string.find(ARGV[i] or '-', '^%d*$') or #ARGV[i] > 20 then return { 'ARG', 'cursor' } end
end

local COUNT, HOUR_MS, forgotten = 250, 3600000, 0
-- An hour before the first expires, those of two hours are taken together: a queue is walked once an hour at most.
local expiring = redis.call('ZCOUNT', cancelled, '-inf', text(now + HOUR_MS))
local until_ms = expiring > 0 and text(now + 2 * HOUR_MS) or ''
-- Drop the fields whose second word, a time in ms, is at or before `limit_ms`; only those with a prefix, if one is given.
local function slice(key, cursor, limit_ms, prefix)
  if cursor == '' then return '' end
  local page = redis.call('HSCAN', key, cursor, 'COUNT', COUNT)
  for i = 1, #page[2], 2 do
    local at_ms = tonumber(string.match(page[2][i + 1], '^%S+ (%d+)'))
    if (not at_ms or at_ms <= limit_ms) and (not prefix or string.find(page[2][i], prefix, 1, true) == 1) then
      local removed = redis.call('HDEL', key, page[2][i])
      if page[2][i + 1] ~= '-' then forgotten = forgotten + removed end -- the lane itself stands in producers
    end
  end
  return page[1] == '0' and '' or page[1]
end
-- Lanes have a place among the counters only while these are few: one slice sees them all.
if ARGV[3] == '0' then slice(stats, '0', now - idle_ms, 'lane:') end
local next_lane = slice(producers, ARGV[3], now - idle_ms)
local next_unique = slice(unique, ARGV[4], now)
local next_row = slice(rows, ARGV[5], now)
return { 'OK', text(now), next_lane, next_unique, next_row, until_ms, forgotten }
