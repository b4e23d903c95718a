#!lua flags=allow-oom
-- repair_lease.lua: check that a lease and its deadline belong together, and repair them.
-- ROLES      operator
-- KEYS       see lib/keys.lua; the lease, left out if its name is not a lease id
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    repair           1 to repair, 0 to report
-- ARGV[3]    lease id         as `unacked` or the key has it
-- Returns {'OK', now ms, problem, degraded} or {'BROKEN', key, type} {'ARG', name}; problem:
--   no_deadline: a lease that would never expire; it gets a deadline, as if it were received now
--   no_messages: a deadline without a lease; it is deleted · deadline: not a time that a call writes; replaced, from now
--   no_lease: a member of the deadlines that is not a lease id; it is buried · unnamed: a lease whose id no call accepts;
--   up to 500 of its messages go unchanged to the tail of ready · '' none
-- O(m) for the m messages of an unnamed lease, else O(1).
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
--- include lib/lease.lua

local HOUR_MS, MAX_MESSAGES = 3600000, 500
local attributes, refused = read_attributes()
if refused then return refused end
refused = broken_queue(ALL_LEVELS)
if refused then return refused end
local now, repair, id, key = clock(ARGV[1], meta), ARGV[2] == '1', ARGV[3], KEYS[FIRST_LEASE]
if not now or not id then return { 'ARG', 'now or lease id' } end
open_journal(attributes.journal, now)
local amounts, to, named = {}, places(attributes.levels), string.find(id, '^[%w._-]+$')
local score = tonumber(redis.call('ZSCORE', unacked, id))
local held = key and redis.call('EXISTS', key) == 1

-- Messages of a lease whose id no script accepts.
local function free_messages()
  local gone = {}
  for number, entry in ipairs(read_lease(key)) do
    if number > MAX_MESSAGES then break end
    local what = kind(entry[2])
    if what == 'foreign' or what == 'own' and not parse(entry[2]) then
      bury_foreign(entry[2], {}, now, amounts)
      amounts.stored = (amounts.stored or 0) - 1
    else
      put(to, to.tails, what == 'own' and level(entry[2]) or 0, entry[2])
      if what == 'plain' then amounts.stored = (amounts.stored or 0) - 1 end -- counted again when it is received
    end
    gone[#gone + 1] = entry[3]
  end
  local rung = write_places(to)
  loosen(key)
  amounts.unacked = -take_out_of(key, gone)
  if rung > 0 and not attributes.paused_out then ring(wake, rung) end
end

local problem = ''
if not named and held then
  problem = 'unnamed'
  if repair then free_messages() end
elseif not named and score then
  problem = 'no_lease'
  if repair then
    bury_foreign(id, {}, now, amounts)
    redis.call('ZREM', unacked, id)
  end
elseif not named or not key then
  problem = ''
elseif held and not score or score and (score < 0 or score > now + MAX_VISIBILITY_MS + HOUR_MS) and held then
  problem = score and 'deadline' or 'no_deadline'
  if repair then redis.call('ZADD', unacked, text(now + attributes.visibility_ms), id) end
elseif score and not held then
  problem = 'no_messages'
  if repair then redis.call('ZREM', unacked, id) end
end
return { 'OK', text(now), problem, math.max(count(stats, amounts), write_journal('')) }
