#!lua flags=allow-oom
-- note.lua: keep a short note of a worker, a reaper or an operator, where a full server refuses the plain command.
-- ROLES      consumer, daemon, operator
-- KEYS[1]    notes            HASH name → note, ZSET name → ms, or LIST of notes, which expires
-- ARGV[1]    command          HSET, HSETNX, ZADD or RPUSH
-- ARGV[2…]   its words        HSET: 1-100 times name, note; HSETNX: name, note; ZADD: ms, name; RPUSH: note
-- Returns {'OK', what the command returns}, {'MANY', most}, or {'BROKEN', key, type} {'ARG', name}
-- A full server must not grow without bound: a name has 512 bytes at most, a note 64 KiB. A HASH or ZSET takes new names
-- while it has fewer than 1,000; a LIST keeps its 64 latest notes, for 30 s.
-- O(k): k names.
--- include lib/checks.lua

local MAX_NAMES, MAX_PAIRS, LATEST, KEPT_MS, MAX_NAME, MAX_NOTE = 1000, 100, 64, 30000, 512, 65536
local TYPES = { HSET = 'hash', HSETNX = 'hash', ZADD = 'zset', RPUSH = 'list' }
local notes, command = KEYS[1], ARGV[1]
local kind = TYPES[command]
if not kind then return { 'ARG', 'command' } end
local refused = broken({ notes, kind })
if refused then return refused end

if kind == 'list' then
  if #ARGV ~= 2 or #ARGV[2] > MAX_NOTE then return { 'ARG', 'note' } end
  local length = redis.call('RPUSH', notes, ARGV[2])
  if length > LATEST then redis.call('LTRIM', notes, -LATEST, -1) end
  redis.call('PEXPIRE', notes, KEPT_MS)
  return { 'OK', length }
end

if kind == 'zset' then
  local ms, name = whole(ARGV[2], 0, 2 ^ 53), ARGV[3]
  if #ARGV ~= 3 or not ms or #name > MAX_NAME then return { 'ARG', 'name' } end
  if redis.call('ZCARD', notes) >= MAX_NAMES and not redis.call('ZSCORE', notes, name) then return { 'MANY', MAX_NAMES } end
  return { 'OK', redis.call('ZADD', notes, ARGV[2], name) }
end

local pairs_given = (#ARGV - 1) / 2
if not whole(pairs_given, 1, command == 'HSET' and MAX_PAIRS or 1) then return { 'ARG', 'notes' } end
for i = 2, #ARGV, 2 do
  if #ARGV[i] > MAX_NAME or #ARGV[i + 1] > MAX_NOTE then return { 'ARG', 'note' } end
end
local left, added = MAX_NAMES - redis.call('HLEN', notes), 0
for i = 2, #ARGV, 2 do
  local known = redis.call('HEXISTS', notes, ARGV[i]) == 1
  if not known and added >= left then return { 'MANY', MAX_NAMES } end
  if not known or command == 'HSET' then redis.call('HSET', notes, ARGV[i], ARGV[i + 1]) end
  if not known then added = added + 1 end
end
return { 'OK', added }
