-- A dead letter is dropped: it cannot be redriven any more, so its group of calls counts it as failed.
local function end_letter(item)
  if kind(item) ~= 'own' or not has_flags(item) then return end
  local head = header(item)
  local id = string.match(head, '^([%w._-]+) ')
  if id then tell_others(head, id, 'purged', true) end
end
