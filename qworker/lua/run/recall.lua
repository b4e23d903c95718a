#!lua flags=no-writes
-- recall.lua: read the recorded steps of a run: all of a short one, of a long one those that are asked for.
-- ROLES      consumer, operator
-- KEYS[1]    run HASH         see step.lua
-- ARGV[1]…   names            1-100 steps, the one that is needed first
-- Returns {'OK', 1 if these are all, else 0, then (name, value) per step}, where the value is '' of a step that is not
--   recorded; or {'BROKEN', key, type} {'ARG', name}
-- All of up to 128 fields and 256 KiB. Otherwise a call ends after 256 KiB, but reads at least one.
-- O(k): k steps.
--- include lib/checks.lua

local MAX_FIELDS, MAX_BYTES = 128, 262144
local run = KEYS[1]
if #ARGV < 1 or #ARGV > 100 then return { 'ARG', 'names' } end
local fields = redis.pcall('HLEN', run)
if type(fields) == 'table' then return { 'BROKEN', run, redis.call('TYPE', run).ok } end
local reply, sizes = { 'OK', 1 }, redis.call('HMGET', run, '@bytes', '@given')
if fields <= MAX_FIELDS and (tonumber(sizes[1]) or 0) + (tonumber(sizes[2]) or 0) <= MAX_BYTES then
  for i, word in ipairs(redis.call('HGETALL', run)) do reply[i + 2] = word end
  return reply
end
reply[2] = 0
local bytes = 0
for _, name in ipairs(ARGV) do
  if bytes >= MAX_BYTES then break end
  local value = redis.call('HGET', run, name) or ''
  reply[#reply + 1], reply[#reply + 2] = name, value
  bytes = bytes + #value
end
return reply
