#!lua flags=allow-oom
-- repair_join.lua: find groups of calls that are listed wrongly, or whose values nothing will read any more, and put that right.
-- ROLES      operator
-- KEYS       see lib/keys.lua, with all leases of the queue. The keys of groups are made here, see lib/ends.lua
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    repair           1 to repair, 0 to report
-- ARGV[3]    keep ms          1-2592000000: how long to keep the result of a callback that will not be sent
-- ARGV[4]…   group ids        1-100
-- Returns {'OK', now ms, '', per group what is wrong, or ''} or, if it was not checked, {'OK', now ms, why}: busy (the leases
--   changed) or large (over 10,000 messages, or 8 MiB); or {'BROKEN', key, type} {'ARG', name}
--   missing     it is listed, and its state is gone: waits for its callback end as discarded
--   unlisted    it waits for calls, and is not listed
--   listed      it is decided, and listed as one that waits
--   left        what it was for has ended, and its values are there
-- O(n): n messages of the queue, dead ones among them, if a group is decided.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/keys.lua
--- include lib/lease.lua
--- include lib/ids_stored.lua
--- include lib/journal_entries.lua
--- include lib/journal.lua
--- include lib/journal_mode.lua

local MAX_KEEP_MS, FIRST_ID, base = 2592000000, 4, string.sub(meta, 1, -5)
local joins, runs, seen, why = base .. 'joins', base .. 'runs', nil, nil
local refused = broken({ meta, 'hash', joins, 'zset', runs, 'zset' }) or broken_queue(ALL_LEVELS)
if refused then return refused end
local now, repair, keep_ms = clock(ARGV[1], meta), ARGV[2] == '1', whole(ARGV[3], 1, MAX_KEEP_MS)
if not now or not keep_ms or #ARGV < FIRST_ID or #ARGV > FIRST_ID + 99 then return { 'ARG', 'now or ids' } end

-- Whether the callback or the run of a group is over.
local function has_ended(id, target)
  local read, run = pcall(cmsgpack.unpack, target or '')
  if read and type(run) == 'table' and type(run[1]) == 'string' then return not redis.call('ZSCORE', runs, run[1]) end
  if not seen and not why then seen, why = ids_stored(true) end
  return seen and not seen[id]
end

local function problem_of(id)
  local join = base .. 'join:' .. id
  local found = redis.pcall('HMGET', join, '@size', '@over', '@then', '@run')
  if found.err then return '' end
  local size, over, after, target = found[1], found[2], found[3], found[4]
  local listed = redis.call('ZSCORE', joins, id)
  if not size then return listed and 'missing' or '' end
  if (over and after or target) and has_ended(id, target) then return 'left' end
  if over then return listed and 'listed' or '' end
  return listed and '' or 'unlisted'
end

local function put_right(id, problem)
  local join, result = base .. 'join:' .. id, base .. 'result:' .. id
  if problem == 'unlisted' then
    redis.call('ZADD', joins, text(now), id)
    return
  end
  local made = redis.call('ZSCORE', joins, id)
  redis.call('ZREM', joins, id)
  if problem == 'missing' then
    if book.on then book.record_group('group_decided', id, text(tonumber(made)), 'lost', '-') end
    redis.pcall('SET', result, 'discarded', 'NX', 'PX', text(keep_ms))
    redis.pcall('SPUBLISH', result, '')
  elseif problem == 'left' then
    -- As its end would have: what it was started with stays for as long as it says.
    local found = redis.call('HMGET', join, '@start', '@size', '@keep', '@over', '@made')
    if book.on and not found[4] then book.record_group('group_decided', id, found[5], 'ended', '-') end
    redis.call('UNLINK', join)
    if found[1] and whole(found[3], 1, MAX_KEEP_MS) then
      redis.call('HSET', join, '@start', found[1], '@size', found[2], '@sent', found[2], '@over', '1')
      redis.call('PEXPIRE', join, found[3])
    end
  end
end

local reply = { 'OK', text(now), '' }
for i = FIRST_ID, #ARGV do reply[#reply + 1] = problem_of(ARGV[i]) end
if why then return { 'OK', text(now), why } end
refused = repair and open_journal_of(now) or nil
if refused then return refused end
for i = FIRST_ID, #ARGV do
  local problem = reply[i]
  if repair and problem ~= '' then put_right(ARGV[i], problem) end
end
write_journal('')
return reply
