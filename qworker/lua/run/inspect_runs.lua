#!lua flags=no-writes
-- inspect_runs.lua: read where runs stand, without their steps.
-- ROLES      operator
-- KEYS[1-2]  meta HASH, delayed ZSET
-- KEYS[3]…   run HASH         1-100 runs, see step.lua
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- Returns {'OK', now ms, per run {ms until it expires, or -1 of one that has not ended, or -2 without a state; fields; since
--   when it sleeps or waits, ms; the signal that it waits for, or ''; due ms; its message}}, the last four '' of a run that
--   is not parked; or {'BROKEN', key, type} {'ARG', name}. Ends after 1 MiB of messages, but has at least one run.
-- O(k log d): k runs, d delayed. A run that sleeps until the same ms as a hundred others may not be found.
--- include lib/clock.lua
--- include lib/checks.lua

local MAX_BYTES, MAX_SAME_MS, meta, delayed = 1048576, 100, KEYS[1], KEYS[2]

-- Find the message of a run that sleeps by its due time, which a field of its state holds; '' if too many are due then.
local function asleep(run, field)
  local due = tonumber(redis.call('HGET', run, field) or '')
  if not due then return '' end
  local begin = 'q1 ' .. string.match(run, '[^:]+$') .. ' '
  for _, item in ipairs(redis.call('ZRANGEBYSCORE', delayed, text(due), text(due), 'LIMIT', 0, MAX_SAME_MS)) do
    if string.sub(item, 1, #begin) == begin then return item end
  end
  return ''
end

if #KEYS < 3 or #KEYS > 102 then return { 'ARG', 'runs' } end
local refused = broken({ meta, 'hash', delayed, 'zset' })
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now then return { 'ARG', 'now' } end
local reply, bytes = { 'OK', text(now) }, 0
for i = 3, #KEYS do
  if bytes >= MAX_BYTES then break end
  local found = redis.pcall('HMGET', KEYS[i], '@parked', '@since', '@waits')
  if found.err then return { 'BROKEN', KEYS[i], redis.call('TYPE', KEYS[i]).ok } end
  local item = found[1] or ''
  if string.sub(item, 1, 1) == '~' then item, found[3] = asleep(KEYS[i], item), '' end
  local due = item ~= '' and redis.call('ZSCORE', delayed, item)
  local about = { redis.call('PTTL', KEYS[i]), redis.call('HLEN', KEYS[i]), '', '', '', '' }
  if due then about[3], about[4], about[5], about[6] = found[2] or '', found[3] or '', text(tonumber(due)), item end
  reply[#reply + 1], bytes = about, bytes + #about[6]
end
return reply
