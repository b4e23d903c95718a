-- What the spec of a group of calls may say, see join.lua.

local queues_named, is_message, wrong_member, is_rest, with_rest, send_member
do
local function is_time(ms)
  return type(ms) == 'string' and (ms == '' or whole(ms, 0, MAX_MS))
end

local function is_queue(name)
  return type(name) == 'string' and #name <= 64 and string.find(name, '^[a-z0-9][a-z0-9._-]*$')
end

function is_message(priority, delay_ms, ttl_ms, head, tail)
  return whole(priority, 0, 9) and is_time(delay_ms) and is_time(ttl_ms) and type(head) == 'string' and #head <= 68
    and string.find(head, '^q1 [%w._-]+ $') and type(tail) == 'string' and string.find(tail, '\n', 1, true)
end

local function is_member(member)
  if type(member) ~= 'table' or not is_queue(member[1]) then return false end
  if type(member[3]) ~= 'table' then return is_message(unpack(member, 2)) end
  if type(member[2]) ~= 'string' or #member[3] == 0 then return false end
  for _, blob in ipairs(member[3]) do
    if type(blob) ~= 'string' then return false end
  end
  return true
end

-- A set of the queues that a list names, or nil if it is none.
function queues_named(list)
  local queues = {}
  if type(list) ~= 'table' or #list > 1000 then return nil end
  for _, name in ipairs(list) do
    if not is_queue(name) then return nil end
    queues[name] = true
  end
  return queues
end

-- Note the queues of the members in `queues`; returns the number of the first one that is wrong, or nil.
function wrong_member(members, queues)
  for i, member in ipairs(members) do
    if not is_member(member) then return i end
    queues[member[1]] = true
  end
end

-- The later steps of members that are to be cancelled, or nil; of groups the messages are not known.
function is_rest(rest, members)
  if rest == nil then return true end
  if type(rest) ~= 'table' then return false end
  for name, steps in pairs(rest) do
    if not is_queue(name) or type(steps) ~= 'string' or string.find(steps, '[^%d -]') then return false end
  end
  for _, member in ipairs(members) do
    if type(member[3]) == 'table' then return false end
  end
  return true
end

-- Add the messages of members to what is stored of earlier ones. `first` is the number of the first one, `sent` that of the first
-- one that was not sent before.
function with_rest(stored, rest, members, first, sent)
  local read, known = pcall(cmsgpack.unpack, stored or '')
  local parts = {}
  local function add(some)
    for name, words in pairs(some) do
      parts[name] = parts[name] or {}
      table.insert(parts[name], words)
    end
  end
  add(read and type(known) == 'table' and known or {})
  for i = sent - first + 1, #members do add({ [members[i][1]] = ' ' .. text(first + i - 1) }) end
  if sent == first then add(rest) end
  for name, words in pairs(parts) do parts[name] = table.concat(words) end
  return cmsgpack.pack(parts)
end

-- Put a member into the outbox for its queue: its message, or the group that it is.
function send_member(member, part, now, lanes)
  if type(member[3]) == 'table' then
    for _, blob in ipairs(member[3]) do send_out(member[1], part, { 'open', member[2], 'spec', blob }, now, lanes) end
  else
    send_out(member[1], part, {
      'priority', text(member[2]), 'delay', member[3], 'ttl', member[4], 'head', member[5], 'tail', member[6],
    }, now, lanes)
  end
end
end
