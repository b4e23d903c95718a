-- The outbox of a queue holds messages and results for other queues until they are stored there. Each destination has its
-- own lane, so that one which is away holds up no other.
--   out HASH                   destination → `<lane> <number of the last entry>`
--   out:<destination> STREAM   `<number>-0` → what is to be stored there: a message, see lib/effects.lua, a result, the end
--                              of a member of a group of calls, or such a group, see join.lua
-- Numbers follow the clock: those of entries that a failover has taken back are not given again.

local function outbox(destination)
  local outs = string.sub(meta, 1, -5) .. 'out'
  return outs, outs .. ':' .. destination
end

-- Add an entry, a list of names and values. `id` is of the message that it comes of. Several of one call share `lanes`, a
-- table that `write_lanes` writes afterwards.
local function send_out(destination, id, entry, now, lanes)
  local NUMBERS_PER_MS = 1024
  local outs, stream = outbox(destination)
  local found = lanes and lanes[destination]
  local lane, last = string.match(found or redis.call('HGET', outs, destination) or '', '^(%S+) (%d+)$')
  lane = lane or 'out-' .. string.sub(redis.sha1hex(stream .. id .. text(now)), 1, 24)
  local number = text(math.max((tonumber(last) or 0) + 1, now * NUMBERS_PER_MS))
  redis.call('XADD', stream, number .. '-0', unpack(entry))
  if lanes then
    lanes[destination] = lane .. ' ' .. number
  else
    redis.call('HSET', outs, destination, lane .. ' ' .. number)
    redis.pcall('HINCRBY', stats, 'followed', 1)
  end
end
