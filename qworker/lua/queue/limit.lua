#!lua flags=allow-oom
-- limit.lua: set the limits of a group, of a parent or of all; then let groups that had to wait look at them, a page a call.
-- ROLES      operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    name             of a group, parent (`acme/`), `acme/*`, `*` or `*/`; '' changes none
-- ARGV[3]    words            see lib/groups.lua; '' removes the limits of that name
-- ARGV[4]    cursor           0 at first, then that of the last call
-- ARGV[5]    before           words that the caller read, to write only over these; '' for none. Without it any but a share
-- Returns {'OK', now ms, next cursor or '0' at the end}. The cursor c: the first limit of the queue is not stored, because not
--   all that is in flight is counted; make the same call again. Or a refusal: {'MANY', limits} {'BROKEN', key, type}
--   {'ARG', name} {'CHANGED'}: that name has other words than those, or a share of a limit over several queues, see share.lua
--   {'GONE'}: the queue whose words the caller has read was removed
-- O(log g) for each of about 250 of g groups, or O(1) for each of 250 messages in flight; a call looks at 1,000 leases.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/keys.lua
--- include lib/envelope.lua
--- include lib/group_records.lua
--- include lib/groups.lua
--- include lib/group_writes.lua
--- include lib/group_lines.lua
--- include lib/group_limits.lua
--- include lib/group_members.lua
--- include lib/packed_slots.lua
--- include lib/group_slots.lua
--- include lib/group_pages.lua
--- include lib/group_counts.lua

local MAX_LIMITS = 1000
local refused = broken({ meta, 'hash', wake, 'list', delayed, 'zset' }) or groups().broken()
if refused then return refused end
local now, name, words, cursor = clock(ARGV[1], meta), ARGV[2], ARGV[3], ARGV[4] or ''
local scanned = string.match(cursor, '^l(%d+)$') or packed_slots.scanned(cursor)
if not now or not whole(scanned, 0, 18446744073709551615) or not words or string.find(words, '[^%w=/. ]') then return { 'ARG', 'limit' } end
if #name > 257 or string.find(name, '%c') then return { 'ARG', 'name' } end
local limits = string.sub(meta, 1, -5) .. 'limits'
if ARGV[5] and redis.call('EXISTS', meta) == 0 then return { 'GONE' } end
local has, before = name ~= '' and redis.call('HGET', limits, name) or '', ARGV[5]
if before and has ~= before or not before and string.find(has, 's=', 1, true) then return { 'CHANGED' } end
if name ~= '' and words == '' then
  redis.call('HDEL', limits, name)
elseif name ~= '' then
  local number = redis.call('HLEN', limits)
  if number >= MAX_LIMITS and redis.call('HEXISTS', limits, name) == 0 then return { 'MANY', text(number) } end
  if number == 0 and not groups().count_page(now) then return { 'OK', text(now), 'c' } end
  redis.call('HSET', limits, name, words)
end
local next_cursor, opened = groups().look_again(cursor, now)
if opened > 0 then ring(wake, opened) end
return { 'OK', text(now), next_cursor }
