local MAX_DUE_MS = 4503599627370495 -- 2^52 - 1: from there on scores of delayed messages are seats, see lib/groups.lua

-- The middle of the header of a new message: values that only the server knows.
local function stamp(now, ttl_ms, delay_ms)
  local middle = text(now) .. ' 0 0 0 0'
  if ttl_ms > 0 then middle = middle .. ' x=' .. text(math.min(now + ttl_ms, MAX_MS)) end
  if delay_ms > 0 then middle = middle .. ' t=' .. text(math.min(now + delay_ms, MAX_DUE_MS)) end
  return middle
end
