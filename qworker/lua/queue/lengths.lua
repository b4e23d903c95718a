#!lua flags=no-writes
-- lengths.lua: count the ready messages of several queues.
-- ROLES      operator
-- KEYS       11 per queue: ready … ready:9 LIST, suspect LIST; 100 queues at most
-- Returns {'OK', '', one number per queue; -1 if one of its keys holds another type} or {'ARG', name}
-- O(q): q queues.

if #KEYS % 11 ~= 0 or #KEYS > 1100 then return { 'ARG', 'queues' } end
local reply = { 'OK', '' }
for first = 1, #KEYS, 11 do
  local length = 0
  for i = first, first + 10 do
    local found = redis.pcall('LLEN', KEYS[i])
    if type(found) == 'table' then
      length = -1
      break
    end
    length = length + found
  end
  reply[#reply + 1] = length
end
return reply
