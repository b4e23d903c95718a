#!lua flags=allow-oom
-- sweep.lua: look at many queues and say which have something to do.
-- ROLES      daemon, operator
-- KEYS[1]    meta HASH        of the first queue
-- KEYS[2]…   4 per queue      delayed ZSET, unacked ZSET, ready LIST, stats HASH
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    tick ms          how often the caller comes by, 1-60000
-- ARGV[3]    leases           overdue leases to name per queue, 1-100, those of the earliest deadlines
-- ARGV[4-5]  newest, skip     may be left out; newest 1: those of the latest deadlines first, else 0; skip: overdue leases
--                             to pass over, 0-10^9
-- Returns {'OK', now ms, one per queue: 0 where there is nothing to tell, or {next due ms or '', next deadline ms or '',
--   expired at the head 1 or 0, overdue lease ids …}, or the error text of a queue whose keys hold other types}, or
--   {'ARG', name}. An overdue member that is no lease id is set aside for a minute, and counted.
-- A call ends after 1 MiB of messages that were read, and at least one queue: the reply is as long as the queues that were looked at.
-- O(q): q queues, 500 at most.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/envelope.lua
--- include lib/grace.lua

local MAX_BYTES, bytes = 1048576, 0
local AT_ONCE = 10 -- queues that are asked together whether any of them holds something

local now = clock(ARGV[1], KEYS[1])
local tick_ms, most, skip = whole(ARGV[2], 1, 60000), whole(ARGV[3], 1, 100), whole(ARGV[5] or 0, 0, 1000000000)
if not now or not tick_ms or not most or not skip or #KEYS > 2001 then return { 'ARG', 'tick_ms or leases' } end

-- What the three reads of a queue gave, made into its part of the reply. Only a queue with leases is written to.
local function look(due, deadline, head, unacked, stats)
  local expiry = head and kind(head) == 'own' and has_flags(head) and parse(head) and number_in(header(head), ' x=')
  local expired = expiry and expiry <= now
  if not due and not deadline and not expired then return 0 end
  local found = {
    due and text(tonumber(due)) or '', deadline and text(tonumber(deadline)) or '', expired and 1 or 0,
  }
  if deadline then
    local overdue_ms = visit(stats, now, tick_ms)
    if tonumber(deadline) <= overdue_ms then
      local named
      if ARGV[4] == '1' then
        named = redis.call('ZRANGE', unacked, text(overdue_ms), '-inf', 'BYSCORE', 'REV', 'LIMIT', skip, most)
      else
        named = redis.call('ZRANGE', unacked, '-inf', text(overdue_ms), 'BYSCORE', 'LIMIT', skip, most)
      end
      for _, id in ipairs(named) do
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

-- Reading is checking: a read of another type fails and writes nothing, and costs half of asking for the types.
local function sweep(delayed, unacked, ready, stats, any_waits, any_ready)
  local due = any_waits and redis.pcall('ZRANGE', delayed, 0, 0, 'WITHSCORES') or {}
  local deadline = any_waits and redis.pcall('ZRANGE', unacked, 0, 0, 'WITHSCORES') or {}
  local head = any_ready and redis.pcall('LINDEX', ready, 0)
  local failed = due.err or deadline.err or type(head) == 'table' and head.err
  local counters = deadline[2] and redis.call('TYPE', stats).ok or 'none'
  local wrong = (failed or counters ~= 'hash' and counters ~= 'none')
    and broken({ delayed, 'zset', unacked, 'zset', ready, 'list', stats, 'hash' })
  if wrong then return wrong[2] .. ' is a ' .. wrong[3] end
  bytes = bytes + #(head or '') + #(due[1] or '')
  return failed or look(due[2], deadline[2], head, unacked, stats)
end

-- Most queues hold nothing most of the time, and a call of a command costs more than what it does.
local reply = { 'OK', text(now) }
for first = 2, #KEYS, 4 * AT_ONCE do
  local last = math.min(first + 4 * AT_ONCE, #KEYS + 1) - 4
  local waiting, readies = {}, {}
  for at = first, last, 4 do
    waiting[#waiting + 1], waiting[#waiting + 2] = KEYS[at], KEYS[at + 1]
    readies[#readies + 1] = KEYS[at + 2]
  end
  local any_waits = redis.call('EXISTS', unpack(waiting)) > 0
  local any_ready = redis.call('EXISTS', unpack(readies)) > 0
  for at = first, last, 4 do
    if bytes >= MAX_BYTES then return reply end
    reply[#reply + 1] = sweep(KEYS[at], KEYS[at + 1], KEYS[at + 2], KEYS[at + 3], any_waits, any_ready)
  end
end
return reply
