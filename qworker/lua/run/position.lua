#!lua
-- position.lua: keep how far a loop of a run has come, if its delivery still holds the lease.
-- It never moves back: a call that comes late changes nothing. A full server refuses it (OOM) before anything is written.
-- ROLES      consumer
-- KEYS[1]    meta HASH
-- KEYS[2-4]  runs ZSET, run HASH, lease HASH: see step.lua
-- ARGV[1-5]  now ms, message id, index, keep ms, progress: see step.lua
-- ARGV[6]    loop             `*<name>`
-- ARGV[7]    position         items that are done
-- ARGV[8]    value            where to continue, see docs/protocol.md
-- ARGV[9]…   steps            0-1000 recorded within items that are done: `<name>[<item>]…`, which are forgotten
-- Returns {'OK', now ms, the position that counts}, {'GONE'} if the lease does not hold the message, or a refusal:
--   {'FULLRUN', bytes} {'BROKEN', key, type} {'ARG', name}
-- O(k + n): k steps; n messages of the lease the first time.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/envelope.lua
--- include lib/lease.lua
--- include lib/progress.lua

local MAX_STEPS = 1000
local meta, runs, run, lease, id, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[2], ARGV[3]
local now, keep_ms = clock(ARGV[1], meta), ARGV[4] ~= '' and whole(ARGV[4], 1, MAX_KEEP_MS)
local loop, position, value = ARGV[6], whole(ARGV[7], 0, MAX_MS), ARGV[8]
local lease_name = string.match(lease, '}:lease:([%w._-]+)$')
if not now or not lease_name or not string.find(id, '^[%w._-]+$') or string.sub(run, -#id - 5) ~= ':run:' .. id then
  return { 'ARG', 'message id' }
end
if keep_ms == nil then return { 'ARG', 'keep ms' } end
if not loop or not string.find(loop, '^%*[%w_.][^%s]*$') or #loop > 128 then return { 'ARG', 'loop' } end
if not position or not value or value == '' or #value > MAX_VALUE then return { 'ARG', 'position' } end
local items, steps = string.sub(loop, 2) .. '[', {}
for i = 9, #ARGV do
  local at = string.find(ARGV[i], items, 1, true)
  if at ~= 1 and not (at == 2 and string.find(ARGV[i], '^[~*!]')) then return { 'ARG', 'steps' } end
  steps[i - 8] = ARGV[i]
end
if #steps > MAX_STEPS then return { 'ARG', 'steps' } end
local found, held, refused = read_run(run, runs, lease, id, index, { '@bytes', loop })
if refused then return refused end
if not held then return { 'GONE' } end
local before, older = string.match(found[2] or '', '^ t=%d+ d=(%d+)(.*)$')
before = tonumber(before or -1)
if position < before then return { 'OK', text(now), text(before) } end

local total = tonumber(found[1] or 0) + #value + (older and -#older or #loop)
if total > MAX_RUN then return { 'FULLRUN', text(total) } end
-- As step.lua counts: without the time; the ends of gathers are not counted.
local untimed = #text(now) + 3
for _, step in ipairs(steps) do
  local stored = redis.call('HSTRLEN', run, step)
  if stored > untimed and string.find(step, '^[^!]') then total = total - #step - stored + untimed end
end
if (keep_ms or ARGV[5] == '1' and position > before) and not advance(lease, lease_name, index, id, keep_ms, now) then
  return { 'ARG', 'message id' }
end
if not found[1] then redis.call('ZADD', runs, 'NX', text(now), id) end
redis.call('HSET', run, '@bytes', text(math.max(total, 0)), loop, ' t=' .. text(now) .. ' d=' .. text(position) .. value)
if #steps > 0 then redis.call('HDEL', run, unpack(steps)) end
return { 'OK', text(now), text(position) }
