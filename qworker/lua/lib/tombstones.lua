-- Which of some items were cancelled: a single tombstone makes every receive look.

-- Position → true, of the items that have a tombstone, and maybe of others that begin like one; nil if none has. `cancelled` is
-- the key of the tombstones.
local function marked_in(items, cancelled)
  local SEVERAL, FEW, FEW_LENGTHS = 8, 128, 4
  local marked, sub = {}, string.sub -- globals are looked up at each use

  -- Tombstones, if they are so few that several items are looked up faster here: id → true, and the lengths of ids. Else nil.
  local function read()
    if #items < SEVERAL or redis.call('ZCARD', cancelled) > FEW then return nil end
    local tombstones, lengths, seen = {}, {}, {}
    for _, id in ipairs(redis.call('ZRANGE', cancelled, 0, -1)) do
      tombstones[id] = true
      if not seen[#id] then seen[#id], lengths[#lengths + 1] = true, #id end
    end
    if #lengths <= FEW_LENGTHS then return tombstones, lengths end
  end

  local tombstones, lengths = read()
  for _, length in ipairs(lengths or {}) do
    local last, after = 3 + length, 4 + length
    for i = 1, #items do
      local item = items[i]
      if tombstones[sub(item, 4, last)] and sub(item, after, after) == ' ' then marked[i] = true end
    end
  end
  if not tombstones then
    local ids = {}
    for i = 1, #items do ids[i] = string.match(items[i], '^q%d+ ([^ ]+)') or '' end
    for i, score in ipairs(ids[1] and redis.call('ZMSCORE', cancelled, unpack(ids)) or ids) do
      if score then marked[i] = true end
    end
  end
  return next(marked) and marked
end
