#!lua flags=allow-oom
-- sweep.lua: look at many queues and report those that need work.
-- ROLES      daemon, operator
-- KEYS[1]    meta HASH        of the first queue
-- KEYS[2]…   4 per queue      delayed ZSET, unacked ZSET, ready LIST, stats HASH
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    tick ms          interval of the caller's ticks, 1-60000
-- ARGV[3]    leases           overdue leases to name per queue, 1-100, those of the earliest deadlines
-- ARGV[4-5]  newest, skip     may be left out; newest 1: those of the latest deadlines first, else 0; skip: overdue leases
--                             to pass over, 0-10^9
-- Returns {'OK', now ms, one per queue: 0 for one without work, or {next due ms or '', next deadline ms or '',
--   expired at the head 1 or 0, overdue lease ids …}, or the error text of a queue whose keys hold other types}, or
--   {'ARG', name}. An overdue member that is no lease id is set aside for a minute, and counted.
-- A call ends after reading 1 MiB of messages, but covers at least one queue; the reply has one value per covered queue.
-- O(q): q queues, 500 at most.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/envelope.lua
--- include lib/grace.lua

local MAX_BYTES, bytes = 1048576, 0
local AT_ONCE = 10 -- queues that one EXISTS checks

local now = clock(ARGV[1], KEYS[1])
local tick_ms, most, skip = whole(ARGV[2], 1, 60000), whole(ARGV[3], 1, 100), whole(ARGV[5] or 0, 0, 1000000000)
if not now or not tick_ms or not most or not skip or #KEYS > 2001 then return { 'ARG', 'tick_ms or leases' } end

-- Turn the three reads of a queue into its part of the reply. Writes only to a queue with leases.
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
          -- Not a lease id, so no call can name its key: move it out of the way of real leases.
          redis.call('ZADD', unacked, text(now + ASIDE_MS), id)
          redis.pcall('HINCRBY', stats, 'set_aside', 1)
        end
      end
    end
  end
  return found
end

-- A read of another type fails without a write, so reading is the check; it costs half of reading the types first.
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

-- Most queues are empty, and calling a command costs more than its work.
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
