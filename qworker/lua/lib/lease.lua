-- A lease is a HASH index → item. Over 64 bytes it forgets its order, so it is read by number.
-- Returns {{index, item}, …} in order.
local function read_lease(key)
  local flat = redis.call('HGETALL', key)
  local entries, sorted, last = {}, true, -1
  for i = 1, #flat, 2 do
    local number = tonumber(flat[i]) or 0
    sorted, last = sorted and number > last, number
    entries[#entries + 1] = { number, flat[i + 1], flat[i] }
  end
  if not sorted then table.sort(entries, function(a, b) return a[1] < b[1] end) end
  return entries
end

-- When a lease was delivered, or extended last, in ms as text: its deadline less its visibility, which is the queue's
-- unless its id tells another one (`<random>-<counter>-<visibility ms>`).
local function received_at(id, deadline, visibility_ms)
  visibility_ms = whole(string.match(id, '^%w+%-%d+%-(%d+)$'), 1, MAX_VISIBILITY_MS) or visibility_ms
  return text(math.max(0, deadline - visibility_ms))
end

local function delete_fields(key, fields)
  local gone = 0
  for first = 1, #fields, 1000 do
    gone = gone + redis.call('HDEL', key, unpack(fields, first, math.min(first + 999, #fields)))
  end
  return gone
end
