#!lua flags=no-writes
-- poll.lua: find out which of several queues have messages to receive.
-- ROLES      consumer, operator
-- KEYS       13 per queue: ready … ready:9 LIST, suspect LIST, wake LIST, meta HASH; 500 queues at most
-- ARGV[1]    levels           may be left out; 1: report the priorities in use as well, for a later EXISTS, and `g` of a
--                             queue with groups
-- Returns {'OK', {number, levels, …}, three values per queue with messages: its number among the queues from 1,
--   ready messages, suspects; or its number, -1 and '<key> is a <type>' if a key holds another type} or
--   {'ARG', name}. The first list has the queues that have used a priority, with those priorities, such as '59'.
--   A queue whose output is paused, or that is rate limited, has no messages.
-- O(q): q queues.
--- include lib/checks.lua

local PER_QUEUE, MAX_QUEUES = 13, 500
local AT_ONCE = 10 -- queues that one EXISTS checks

if #KEYS % PER_QUEUE ~= 0 or #KEYS > PER_QUEUE * MAX_QUEUES then return { 'ARG', 'queues' } end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- The length of a list, or its key and type in words if it is another type.
local function length(key)
  local found = redis.pcall('LLEN', key)
  if type(found) == 'number' then return found end
  local wrong = broken({ key, 'list' })
  return nil, wrong and wrong[2] .. ' is a ' .. wrong[3] or found.err
end

-- The numbers of ready messages and suspects; or -1 and the problem. Only levels in use count.
local function poll(first)
  local _, wrong = length(KEYS[first + 11])
  if wrong then return -1, wrong end
  local meta = KEYS[first + 12]
  local attributes = redis.pcall('HMGET', meta, 'paused', 'levels', 'groups')
  if attributes.err then return -1, meta .. ' is a ' .. redis.call('TYPE', meta).ok end
  if attributes[1] == 'out' or attributes[1] == 'all' then return 0, 0 end
  local limited_ms = attributes[1] and tonumber(string.match(attributes[1], '^until (%d+)$'))
  if limited_ms then
    local since_ms = tonumber(redis.call('HGET', meta, 'limited_ms')) or 0
    -- A receive shortens the wait after a clock was set back.
    if limited_ms > now_ms() and since_ms <= now_ms() then return 0, 0 end
  end
  local ready = 0
  for level = 0, 9 do
    if level == 0 or attributes[2] and string.find(attributes[2], tostring(level), 1, true) then
      local number, problem = length(KEYS[first + level])
      if problem then return -1, problem end
      ready = ready + number
    end
  end
  if attributes[3] then
    -- Made here, not declared: they are in the slot of the queue.
    local turns, later = string.sub(meta, 1, -5) .. 'turns', string.sub(meta, 1, -5) .. 'later'
    local wrong = broken({ turns, 'zset', later, 'zset' })
    if wrong then return -1, wrong[2] .. ' is a ' .. wrong[3] end
    ready = ready + redis.call('ZCARD', turns) + redis.call('ZCOUNT', later, '-inf', string.format('%.0f', now_ms()))
  end
  local suspects, problem = length(KEYS[first + 10])
  if problem then return -1, problem end
  if suspects > 0 and attributes[3] then
    -- They wait for the rates of their groups, see lib/turn_parts.lua.
    local wait_ms = (tonumber(redis.call('HGET', meta, 'suspects_ms')) or 0) - now_ms()
    if wait_ms > 0 and wait_ms <= 1000 then suspects = 0 end
  end
  return ready, suspects
end

-- Whether one of the queues may have members of groups, which are in no list.
local function grouped(metas)
  if redis.call('EXISTS', unpack(metas)) == 0 then return false end
  for _, meta in ipairs(metas) do
    if redis.pcall('HGET', meta, 'groups') == '1' then return true end
  end
  return false
end

-- Most queues are empty, and calling a command costs more than its work.
local levels = {}
local reply = { 'OK', levels }
for first = 1, #KEYS, PER_QUEUE * AT_ONCE do
  local last, lists, metas = math.min(first + PER_QUEUE * AT_ONCE - 1, #KEYS), {}, {}
  for at = first, last, PER_QUEUE do
    for i = at, at + 11 do lists[#lists + 1] = KEYS[i] end
    metas[#metas + 1] = KEYS[at + 12]
  end
  if ARGV[1] == '1' and redis.call('EXISTS', unpack(metas)) > 0 then
    for i, meta in ipairs(metas) do
      local used = redis.pcall('HMGET', meta, 'levels', 'groups')
      if used[1] or used[2] then
        levels[#levels + 1], levels[#levels + 2] = (first - 1) / PER_QUEUE + i, (used[1] or '') .. (used[2] and 'g' or '')
      end
    end
  end
  if redis.call('EXISTS', unpack(lists)) > 0 or grouped(metas) then
    for at = first, last, PER_QUEUE do
      local ready, suspects = poll(at)
      if ready ~= 0 or suspects ~= 0 then
        reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = (at - 1) / PER_QUEUE + 1, ready, suspects
      end
    end
  end
end
return reply
