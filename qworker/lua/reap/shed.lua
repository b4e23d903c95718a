#!lua flags=allow-oom
-- shed.lua: pause or resume the journals of queues: a nearly full server needs its memory for messages.
-- ROLES      daemon, operator
-- KEYS       meta HASH of each queue, 1-500
-- ARGV[1]    now ms           '' (tests: see clock.lua; meta of the first queue)
-- ARGV[2]    shed             1 to pause, 0 to resume
-- Returns {'OK', now ms, changed}, or {'ARG', name}. Queues without a journal, and keys of another type, are left alone.
-- O(q): q queues.
--- include lib/clock.lua

local MAX_QUEUES = 500
local now = clock(ARGV[1], KEYS[1])
if not now or #KEYS > MAX_QUEUES or ARGV[2] ~= '0' and ARGV[2] ~= '1' then return { 'ARG', 'shed' } end
local changed = 0
for _, meta in ipairs(KEYS) do
  local found = redis.pcall('HMGET', meta, 'journal', 'journal_shed')
  if not found.err then
    local on, is_shed = found[1] == 'outcomes' or found[1] == 'all', found[2] == '1'
    if ARGV[2] == '1' and on and not is_shed then
      redis.call('HSET', meta, 'journal_shed', '1')
      changed = changed + 1
    elseif ARGV[2] == '0' and found[2] then
      redis.call('HDEL', meta, 'journal_shed')
      changed = changed + 1
    end
  end
end
return { 'OK', text(now), changed }
