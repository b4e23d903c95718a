local MAX_MS = 9007199254740992 -- 2^53: the largest integer that a score keeps

-- Integers as text: `..` writes 1e+14 from fourteen digits on. An infinite score, which only another program
-- writes, becomes the largest number.
local function text(number)
  return string.format('%.0f', math.max(-MAX_MS, math.min(number, MAX_MS)))
end

-- The time of this call in ms since 1970, also as text: the server's. An explicit time is for tests, and
-- refused (nil) unless the queue's meta.test is set: no client clock reaches a script otherwise.
local function clock(override, meta)
  if override ~= '' then
    local now = redis.call('HGET', meta, 'test') == '1' and tonumber(override) or nil
    return now, now and text(now)
  end
  local t = redis.call('TIME')
  local now = t[1] .. string.sub('00000' .. t[2], -6, -4) -- the thousands of the microseconds
  return tonumber(now), now
end
