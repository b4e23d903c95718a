-- A message moves to another lease, and the slot of its group with it.
local function move_slot(meta, item, old_id, new_id, index)
  if kind(item) ~= 'own' or not has_flags(item) or not flag(item, ' g=') then return end
  local slots = string.sub(meta, 1, -5) .. 'slots'
  packed_slots.loosen(slots, old_id)
  local name = redis.call('HGET', slots, old_id .. ':' .. index)
  if not name then return end
  redis.call('HSET', slots, new_id .. ':' .. index, name)
  redis.call('HDEL', slots, old_id .. ':' .. index)
end
