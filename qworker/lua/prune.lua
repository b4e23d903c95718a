#!lua flags=allow-oom
-- prune.lua: forget idle lanes, expired unique keys and expired tombstones, a slice at a time.
-- KEYS[1]    producers HASH   lane → last sequence number and ms, …
-- KEYS[2]    unique HASH      unique key → message id and expiry ms
-- KEYS[3]    cancelled ZSET   message id → expiry ms
-- KEYS[4]    meta HASH
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    idle ms          a lane without a send for so long is forgotten
-- ARGV[3]    cursor           of producers, '0' to begin
-- ARGV[4]    cursor           of unique, '0' to begin
-- Returns {'OK', now ms, next cursor of producers, next cursor of unique, forgotten}; cursor '0' means done;
--   or {'BROKEN', key, type} {'ARG', name}
-- O(500 + log c): c tombstones.
--- include lib/clock.lua
--- include lib/checks.lua

local producers, unique, cancelled, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local refused = broken({ producers, 'hash', unique, 'hash', cancelled, 'zset', meta, 'hash' })
if refused then return refused end
local now, idle_ms = clock(ARGV[1], meta), whole(ARGV[2], 1, MAX_MS)
if not now or not idle_ms then return { 'ARG', 'idle_ms' } end
if not string.find(ARGV[3], '^%d+$') or not string.find(ARGV[4], '^%d+$') then return { 'ARG', 'cursor' } end

local MAX_TOMBSTONES = 500
local forgotten = math.min(redis.call('ZCOUNT', cancelled, '-inf', text(now)), MAX_TOMBSTONES)
if forgotten > 0 then redis.call('ZREMRANGEBYRANK', cancelled, 0, forgotten - 1) end
-- Drop the fields whose second word, a time in ms, is at or before `limit_ms`.
local function slice(key, cursor, limit_ms)
  local page = redis.call('HSCAN', key, cursor, 'COUNT', 250)
  for i = 1, #page[2], 2 do
    local at_ms = tonumber(string.match(page[2][i + 1], '^%S+ (%d+)'))
    if not at_ms or at_ms <= limit_ms then
      forgotten = forgotten + redis.call('HDEL', key, page[2][i])
    end
  end
  return page[1]
end
local next_lane = slice(producers, ARGV[3], now - idle_ms)
local next_unique = slice(unique, ARGV[4], now)
return { 'OK', text(now), next_lane, next_unique, forgotten }
