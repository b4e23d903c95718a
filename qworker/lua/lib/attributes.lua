-- The attributes of a queue that consumers and reapers read.

local DEFAULT_MAX_RECEIVES = 5
-- Until when receives wait because a handler said that it was rate limited: `paused` is `until <ms>`, since `limited_ms`. The
-- first receive after that ends it.
local limited_ms

-- That time after a clock was set back to before the limit was met: the queue waits as long as it was asked to, not longer.
local function set_back(until_ms, since, now)
  return until_ms - math.max(0, (tonumber(since) or now) - now)
end

-- Read the attributes; nil and a refusal if meta is not a HASH.
local function read_attributes()
  local found = redis.pcall('HMGET', meta, 'visibility_ms', 'paused', 'levels', 'max_receives', 'journal', 'journal_cap',
    'journal_epoch', 'journal_shed', 'pause_strict', 'groups')
  if found.err then return nil, { 'BROKEN', meta, redis.call('TYPE', meta).ok } end
  limited_ms = found[2] and tonumber(string.match(found[2], '^until (%d+)$'))
  has_groups = found[10] == '1'
  return {
    visibility_ms = whole(found[1], 1, MAX_VISIBILITY_MS) or DEFAULT_VISIBILITY_MS,
    paused_out = found[2] == 'out' or found[2] == 'all',
    strictly_in = (found[2] == 'in' or found[2] == 'all') and found[9] == '1',
    levels = levels_in_use(found[3]),
    max_receives = whole(found[4], 1, MAX_MS) or DEFAULT_MAX_RECEIVES,
    journal = { mode = found[5], cap = found[6], epoch = found[7], shed = found[8] },
  }
end
