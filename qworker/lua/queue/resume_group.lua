#!lua flags=allow-oom
-- resume_group.lua: end the wait of a group or parent that a handler asked for by RateLimited.
-- ROLES      operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    name             of a parent (`acme/`) or a group; the ordered group of that name as well
-- Returns {'OK', how many waited for that}, or a refusal: {'BROKEN', key, type} {'ARG', name}. Limits still hold.
-- O(log g) of g groups.
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

local refused = broken({ meta, 'hash', wake, 'list', delayed, 'zset' }) or groups().broken()
if refused then return refused end
local now, name = clock(ARGV[1], meta), ARGV[2] or ''
if not now or name == '' or #name > 256 or string.find(name, '%c') then return { 'ARG', 'name' } end
local ended = 0
for _, each in ipairs({ name, '=' .. name }) do
  if groups().end_wait(each, now) then ended = ended + 1 end
end
if groups().opened > 0 then ring(wake, groups().opened) end
return { 'OK', text(ended) }
