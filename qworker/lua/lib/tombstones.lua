-- Find the cancelled items among many, cheaply: a single cancel makes every receive look.
local FEW = 64 -- tombstones that are read at once, instead of asking for each chunk of items

-- The tombstones of the queue: nil without any, all of them if they are few, else an empty table.
local function read_tombstones()
  if redis.call('EXISTS', cancelled) == 0 then return nil end
  local number, found = redis.call('ZCARD', cancelled), {}
  for _, id in ipairs(number <= FEW and redis.call('ZRANGE', cancelled, 0, -1) or {}) do found[id] = true end
  return found
end

-- Which items of a chunk have a tombstone: position → true.
local function marked_in(chunk, tombstones)
  local ids, places_of, marked, few = {}, {}, {}, next(tombstones) ~= nil
  for i = 1, #chunk do
    local item = chunk[i]
    local stop = kind(item) == 'own' and find(item, ' ', 4, true)
    local id = stop and string.sub(item, 4, stop - 1)
    if id and few then
      marked[i] = tombstones[id]
    elseif id then
      ids[#ids + 1], places_of[#ids + 1] = id, i
    end
  end
  if #ids == 0 then return marked end
  for i, score in ipairs(redis.call('ZMSCORE', cancelled, unpack(ids))) do
    if score then marked[places_of[i]] = true end
  end
  return marked
end
