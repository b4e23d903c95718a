#!lua flags=allow-oom
-- sweep.lua: look at many queues and say which have something to do.
-- KEYS       5 per queue: delayed ZSET, unacked ZSET, ready LIST, stats HASH, meta HASH
-- ARGV[1]    now ms           '' (tests: see clock.lua; meta of the first queue)
-- ARGV[2]    tick ms          how often the caller comes by, 1-60000
-- ARGV[3]    leases           overdue leases to name per queue, 1-100
-- Returns {'OK', now ms, one per queue: {next due ms or '', next deadline ms or '', expired at the head 1 or 0,
--   overdue lease ids …} or the error text of a queue whose keys hold other types}. An overdue member that is no
--   lease id is set aside for a minute, and counted.
-- O(q): q queues, 500 at most.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/envelope.lua
--- include lib/visit.lua

local now = clock(ARGV[1], KEYS[5])
local tick_ms, most = whole(ARGV[2], 1, 60000), whole(ARGV[3], 1, 100)
if not now or not tick_ms or not most or #KEYS > 2500 then return { 'ARG', 'tick_ms or leases' } end

-- What the three reads of a queue gave, made into its part of the reply. Only a queue with leases is written to.
local function look(due, deadline, head, unacked, stats)
  local expiry = head and kind(head) == 'own' and parse(head) and number_in(header(head), ' x=')
  local found = {
    due and text(tonumber(due)) or '', deadline and text(tonumber(deadline)) or '',
    expiry and expiry <= now and 1 or 0,
  }
  if deadline then
    local overdue_ms = visit(stats, now, tick_ms)
    if tonumber(deadline) <= overdue_ms then
      for _, id in ipairs(redis.call('ZRANGE', unacked, '-inf', text(overdue_ms), 'BYSCORE', 'LIMIT', 0, most)) do
        if string.find(id, '^[%w._-]+$') then
          found[#found + 1] = id
        else
          -- Nobody made this lease and nobody can name its key: not to stand in front of the others for ever.
          redis.call('ZADD', unacked, text(now + ASIDE_MS), id)
          redis.pcall('HINCRBY', stats, 'set_aside', 1)
        end
      end
    end
  end
  return found
end

local reply = { 'OK', text(now) }
for first = 1, #KEYS, 5 do
  local delayed, unacked, ready, stats = KEYS[first], KEYS[first + 1], KEYS[first + 2], KEYS[first + 3]
  -- Reading is checking: a read of another type fails and writes nothing, and costs half of asking for the types.
  local due = redis.pcall('ZRANGE', delayed, 0, 0, 'WITHSCORES')
  local deadline = redis.pcall('ZRANGE', unacked, 0, 0, 'WITHSCORES')
  local head = redis.pcall('LINDEX', ready, 0)
  local failed = due.err or deadline.err or type(head) == 'table' and head.err
  local counters = redis.call('TYPE', stats).ok
  local wrong = (failed or counters ~= 'hash' and counters ~= 'none')
    and broken({ delayed, 'zset', unacked, 'zset', ready, 'list', stats, 'hash' })
  if wrong then
    reply[#reply + 1] = wrong[2] .. ' is a ' .. wrong[3]
  elseif failed then
    reply[#reply + 1] = failed
  else
    reply[#reply + 1] = look(due[2], deadline[2], head, unacked, stats)
  end
end
return reply
