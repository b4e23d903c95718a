-- Count a message whose end is reported to others (flags i and j): a queue with such a count is read before it is removed.
local function note_awaited(tail, amounts)
  local stop = string.find(tail, '\n', 1, true)
  if string.find(string.sub(tail, 1, stop), ' [ij]=') then amounts.awaited = (amounts.awaited or 0) + 1 end
end
