-- Checks before the first write. A script is isolated but not rolled back: a command that fails
-- after a write leaves that write behind.

-- A refusal that names the first of {key, type, key, type, …} that holds another type; nil if none does. Most keys of a
-- queue usually do not exist: EXISTS counts those that do, and the types are read until all of these are found. So the
-- likely ones come first.
local function broken(expected)
  local keys = {}
  for i = 1, #expected, 2 do keys[#keys + 1] = expected[i] end
  local unseen = redis.call('EXISTS', unpack(keys))
  for i = 1, #expected, 2 do
    if unseen == 0 then return nil end
    local found = redis.call('TYPE', expected[i]).ok
    if found ~= 'none' then
      if found ~= expected[i + 1] then return { 'BROKEN', expected[i], found } end
      unseen = unseen - 1
    end
  end
  return nil
end

-- A whole number within minimum…maximum, or nil.
local function whole(value, minimum, maximum)
  local number = tonumber(value)
  if not number or number ~= math.floor(number) or number < minimum or number > maximum then
    return nil
  end
  return number
end

local MAX_VISIBILITY_MS = 43200000 -- 12 h
local DEFAULT_VISIBILITY_MS = 30000
