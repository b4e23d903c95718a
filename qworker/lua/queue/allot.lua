#!lua flags=allow-oom
-- allot.lua: divide a limit over several queues among their shards, so that all shares together never exceed it.
-- ROLES      daemon, operator
-- KEYS[1]    limits HASH      of the namespace: parent (`acme/`) → words as in lib/groups.lua, and `q=<queue>,…`
--                             `v=<changed ms>`; `<parent>\n<shard>` → `<version> <slots> <held> <part> <held> <changed ms>`
-- ARGV[1]    parent           the name of the limit
-- ARGV[2]    words            of the limit as the caller read them; if they have changed, nothing is divided
-- ARGV[3]    rest ms          age of a share at which a report of it lets others have the slots it gave up, 0-60000
-- ARGV[4…]   6 per shard, 100 at most: shard, then of its last report: version or '' without one, concurrency ('' for none),
--            in flight; then what it should have: slots, and millionths of the rate. Slots '': as before. '-': nothing, and it
--            is forgotten when it has nothing.
-- Returns {'OK', then per shard: version, slots ('' for no limit), part, 1 while it may use more than that or 0}, or
--   {'CHANGED'} {'BROKEN', key, type} {'ARG', name}
-- A share is held until the shard has reported a smaller one. Only what is not held is given to others.
-- O(s): s shards.
--- include lib/clock.lua
--- include lib/checks.lua

local MAX_SHARDS, NONE, WHOLE = 100, 1000000000000, 1000000 -- NONE: slots without a limit; parts above WHOLE are not known
-- Versions are times, and may run a little ahead of the clock. One that is further ahead is of before the clock was set
-- back; slots that wait for it would be idle until then.
local SET_BACK_MS = 1000
local limits, name, words = KEYS[1], ARGV[1], ARGV[2]
local refused = broken({ limits, 'hash' })
if refused then return refused end
local now, rest_ms = clock('', ''), whole(ARGV[3], 0, 60000)
if not rest_ms or #ARGV > 3 + 6 * MAX_SHARDS or #ARGV % 6 ~= 3 then return { 'ARG', 'shards' } end
if redis.call('HGET', limits, name) ~= words then return { 'CHANGED' } end
local changed_ms = tonumber(string.match(words, 'v=(%d+)')) or 0
local most = tonumber(string.match(words, 'c=(%d+)')) or NONE

local shares, slots_held, parts_held, taken_back = {}, 0, 0, false
for at = 4, #ARGV, 6 do
  local field = name .. '\n' .. ARGV[at]
  local version, slots, held, part, part_held, written_ms =
    string.match(redis.call('HGET', limits, field) or '0 0 ' .. text(NONE) .. ' 0 ' .. text(WHOLE + 1) .. ' 0',
      '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not version then return { 'ARG', 'share' } end
  local one = {
    field = field, version = tonumber(version), slots = tonumber(slots), held = tonumber(held), part = tonumber(part),
    part_held = tonumber(part_held), written_ms = tonumber(written_ms), drop = ARGV[at + 4] == '-',
    want = whole(ARGV[at + 4] == '-' and 0 or ARGV[at + 4], 0, NONE), want_part = whole(ARGV[at + 5], 0, WHOLE) or 0,
  }
  local seen, seen_slots = whole(ARGV[at + 1], 0, MAX_MS), whole(ARGV[at + 2], 0, NONE) or NONE
  local used = math.max(seen_slots, whole(ARGV[at + 3], 0, NONE) or 0)
  one.reported = seen and seen <= one.version
  if seen and seen > one.version then
    -- A failover has taken back what this key said, or the shard has a share that no pass gave it.
    taken_back = taken_back or one.version > 0
    one.version, one.slots, one.changed = seen, math.min(one.slots, seen_slots), true
  elseif seen and seen == one.version and seen > 0 then
    one.part_held = one.part
    local age_ms = now - one.version
    if age_ms >= rest_ms or age_ms < -SET_BACK_MS then one.held, one.known = used, true end
  end
  one.changed = one.changed or one.version == 0 or one.written_ms ~= changed_ms
  if one.drop then one.want_part = 0 end
  if not one.want then one.want, one.want_part = one.slots, one.part end
  if most == NONE and not one.drop then one.want = NONE end
  if one.want < one.slots then one.slots, one.changed = one.want, true end
  if one.want_part < one.part then one.part, one.changed = one.want_part, true end
  shares[#shares + 1] = one
end
for _, one in ipairs(shares) do
  -- What this key said of a shard that does not answer may have been taken back as well.
  if taken_back and not one.reported then one.held, one.part_held = NONE, WHOLE + 1 end
  one.held, one.part_held = math.max(one.held, one.slots), math.max(one.part_held, one.part)
  slots_held, parts_held = slots_held + one.held, parts_held + one.part_held
end

-- How much a shard may have of what it wants; it may be given again what it still holds, if that is known.
local function more(want, has, held, unknown, free)
  return math.max(has, math.min(want, held < unknown and held + math.max(0, free) or has))
end

for _, one in ipairs(shares) do
  local slots = one.want
  if most < NONE then
    slots = more(one.want, one.slots, one.held, NONE, most - slots_held)
    slots_held = slots_held + math.max(0, slots - one.held)
  end
  local part = more(one.want_part, one.part, one.part_held, WHOLE + 1, WHOLE - parts_held)
  parts_held = parts_held + math.max(0, part - one.part_held)
  one.changed = one.changed or slots ~= one.slots or part ~= one.part
  one.slots, one.part = slots, part
  one.held, one.part_held = math.max(one.held, slots), math.max(one.part_held, part)
end

local reply = { 'OK' }
for _, one in ipairs(shares) do
  if one.changed then one.version = math.max(one.version + 1, now) end
  if one.drop and one.known and not one.changed and one.held == 0 then
    redis.call('HDEL', limits, one.field)
  else
    redis.call('HSET', limits, one.field, table.concat({
      text(one.version), text(one.slots), text(one.held), text(one.part), text(one.part_held), text(changed_ms),
    }, ' '))
  end
  for _, word in ipairs({
    text(one.version), one.slots < NONE and text(one.slots) or '', text(one.part),
    (one.held > one.slots and most < NONE or one.part_held > one.part) and 1 or 0,
  }) do
    reply[#reply + 1] = word
  end
end
return reply
