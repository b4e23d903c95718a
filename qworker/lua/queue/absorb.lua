#!lua flags=allow-oom
-- absorb.lua: add the totals of a removed shard to those of its queue, once.
-- ROLES      daemon, operator
-- KEYS[1]    meta HASH        of the queue
-- KEYS[2]    stats HASH       of the queue
-- ARGV[1]    shard            its number
-- ARGV[2]    id               of the totals from retire.lua; nothing is added if this or a later one was added before
-- ARGV[3…]   name, total, …   at most 100 totals
-- Returns {'OK', degraded}: 1 if a counter could not be raised; or {'BROKEN', key, type} {'ARG', name}.
-- O(n), n being the totals.
--- include lib/checks.lua
--- include lib/counters.lua

local meta, stats, id = KEYS[1], KEYS[2], ARGV[2]
local shard = whole(ARGV[1], 1, 63)
if not shard then return { 'ARG', 'shard' } end
if not string.find(id or '', '^[%w-]+$') then return { 'ARG', 'id' } end
if #ARGV > 202 or #ARGV % 2 ~= 0 then return { 'ARG', 'totals' } end
local amounts = {}
for i = 3, #ARGV, 2 do
  local total = whole(ARGV[i + 1], 1, 9007199254740992)
  if not total then return { 'ARG', 'totals' } end
  amounts[ARGV[i]] = total
end
local refused = broken({ meta, 'hash', stats, 'hash' })
if refused then return refused end

local field = string.format('absorbed:%d', shard)
local function ms_of(retired) return tonumber(string.match(retired, '^(%d+)-')) or 0 end
local last = redis.call('HGET', meta, field) or ''
if last == id or ms_of(last) > ms_of(id) then return { 'OK', 0 } end
redis.call('HSET', meta, field, id)
return { 'OK', count(stats, amounts) }
