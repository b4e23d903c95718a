-- A message moves to another lease, and the slot of its group with it.
local function move_slot(item, old_id, new_id, index)
  if kind(item) == 'own' and has_flags(item) and flag(item, ' g=') then groups().move_slot(old_id, new_id, index) end
end
