#!lua flags=allow-oom
-- configure.lua: set attributes of a queue; create it if it is new.
-- ROLES      operator
-- KEYS[1]    meta HASH
-- KEYS[2]    wake LIST
-- KEYS[3]    stats HASH
-- KEYS[4]    journal STREAM
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]…   attribute, value pairs; the value '' removes the attribute (back to the default)
-- Returns {'OK', now ms} or {'BROKEN', key, type} {'ARG', name}
-- A journal that was written before gets an event `mode` for each change of its mode: readers know what it left out.
-- O(a): a attributes.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua

local meta, wake, stats, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
--- include lib/journal_entries.lua
--- include lib/journal.lua

local now

-- The mode of the journal: off, outcomes or all.
local function read_mode()
  local mode = redis.call('HGET', meta, 'journal')
  return (mode == 'all' or mode == 'outcomes') and mode or 'off'
end

-- Write the change of mode, even while the journal is shed: it is one line.
local function mark_mode(mode)
  local found = redis.call('HMGET', meta, 'journal_epoch', 'journal_cap')
  if not found[1] then return end
  open_journal({ mode = 'all', cap = found[2], epoch = found[1] }, now)
  book.add_row('mode - - - ' .. mode .. ' -', '- ' .. text(now) .. ' 0 0 0 0')
  write_journal('')
end

local refused = broken({ meta, 'hash', wake, 'list' })
if refused then return refused end
now = clock(ARGV[1], meta)
if not now or #ARGV % 2 == 0 then return { 'ARG', 'attributes' } end
local before, mode = redis.call('HGET', meta, 'paused') or '', read_mode()
for i = 2, #ARGV, 2 do
  if ARGV[i] == 'journal' and ARGV[i + 1] == '' and redis.call('HEXISTS', meta, 'groups') == 1 then
    redis.call('HSET', meta, 'journal', 'off') -- it sends calls of earlier versions the long way, see lib/groups.lua
  elseif ARGV[i + 1] == '' then
    redis.call('HDEL', meta, ARGV[i])
  else
    redis.call('HSET', meta, ARGV[i], ARGV[i + 1])
  end
end
redis.call('HSETNX', meta, 'created_ms', text(now))
redis.call('HSET', meta, 'modified_ms', text(now))
local after = redis.call('HGET', meta, 'paused') or ''
if after ~= before then redis.call('HDEL', meta, 'limited_ms') end
local closed = before == 'out' or before == 'all' or string.find(before, '^until ')
local opened = closed and after ~= 'out' and after ~= 'all'
if opened then ring(wake, MAX_TOKENS) end
if read_mode() ~= mode then mark_mode(read_mode()) end
return { 'OK', text(now) }
