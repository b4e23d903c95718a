-- What is validated before the first write. A script is isolated but not rolled back: a command
-- that fails after a write leaves that write behind.

-- The first of {key, type, key, type, …} that holds another type, as a refusal; nil if none does.
local function broken(expected)
  for i = 1, #expected, 2 do
    local found = redis.call('TYPE', expected[i]).ok
    if found ~= 'none' and found ~= expected[i + 1] then
      return { 'BROKEN', expected[i], found }
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
