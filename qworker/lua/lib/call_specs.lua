-- What the spec of a group of calls may say, see join.lua.

local is_queue, is_message, wrong_member
do
local function is_time(ms)
  return type(ms) == 'string' and (ms == '' or whole(ms, 0, MAX_MS))
end

function is_queue(name)
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

-- Note the queues of the members in `queues`; returns the number of the first one that is wrong, or nil.
function wrong_member(members, queues)
  for i, member in ipairs(members) do
    if not is_member(member) then return i end
    queues[member[1]] = true
  end
end
end
