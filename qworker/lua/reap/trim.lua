#!lua flags=allow-oom
-- trim.lua: remove the run of expired messages at the head of each level of ready.
-- ROLES      daemon, operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    limit            messages per level, 1-1000; a call also ends after 1 MiB
-- Returns {'OK', now ms, expired, full (1 where a level may have more), degraded} or {'BROKEN', key, type} {'ARG', name}
-- O(k): k expired.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/counters.lua
--- include lib/keys.lua
--- include lib/attributes.lua
--- include lib/envelope.lua
--- include lib/journal_entries.lua
--- include lib/journal.lua
--- include lib/order.lua
--- include lib/group_records.lua
--- include lib/groups.lua
--- include lib/group_writes.lua
--- include lib/group_lines.lua
--- include lib/group_limits.lua
--- include lib/group_members.lua
--- include lib/packed_slots.lua
--- include lib/group_slots.lua
--- include lib/outbox.lua
--- include lib/ends.lua
--- include lib/requeue.lua

local MAX_BYTES = 1048576
local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(attributes.levels)
if refused then return refused end
local now, limit = clock(ARGV[1], meta), whole(ARGV[2], 1, 1000)
if not now or not limit then return { 'ARG', 'limit' } end

open_journal(attributes.journal, now)
local expired, full, bytes = 0, 0, 0
for _, number in ipairs(attributes.levels) do
  local run, going, before = 0, true, bytes
  while going and run < limit and bytes < MAX_BYTES do
    local chunk = redis.call('LRANGE', ready(number), run,
      run + chunk_size(run, bytes - before, MAX_BYTES - bytes) - 1)
    going = #chunk > 0
    for _, item in ipairs(chunk) do
      local expiry = kind(item) == 'own' and number_in(header(item), ' x=')
      if not expiry or expiry > now or not parse(item) or run >= limit or bytes >= MAX_BYTES then
        going = false
        break
      end
      record('expired', item)
      end_of(item, 'expired')
      run, bytes = run + 1, bytes + #item
    end
  end
  if run > 0 then redis.call('LTRIM', ready(number), run, -1) end
  if run >= limit or bytes >= MAX_BYTES then full = 1 end
  expired = expired + run
end
local degraded = math.max(count(stats, { expired = expired, stored = -expired }), write_journal(''))
return { 'OK', text(now), expired, full, degraded }
