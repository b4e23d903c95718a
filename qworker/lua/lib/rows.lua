-- Envelopes of rows, whose bodies are ARGV[at + 1] … ARGV[at + number]. Ids end in numbers of 10 digits, from first + 1
-- on. Formatting a number takes as long as making the envelope, so only every hundredth is formatted completely.
local function envelopes(at, number, start, first, rest)
  local format, lows, items, head = string.format, {}, {}, nil
  for low = 0, 99 do lows[low] = format('%02d', low) end
  for row = 1, number do
    local low = (first + row) % 100
    if low == 0 or not head then head = start .. format('%08d', (first + row - low) / 100) end
    items[row] = head .. lows[low] .. rest .. ARGV[at + row]
  end
  return items
end
