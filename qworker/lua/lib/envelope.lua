-- The envelope: `q1 <id> <sent_ms> <receives> <nacks> <timeouts> <shared>[ k=v …]\n<body>`.
-- Bodies are never decoded here, and nothing in a list, set or lease can make these raise.

-- own: ours · plain: JSON pushed by anybody · newer: another version of ours · foreign: the rest.
local function kind(item)
  local first = string.byte(item)
  if first == 123 or first == 91 then return 'plain' end -- { [
  if string.sub(item, 1, 3) == 'q1 ' then return 'own' end
  if string.find(item, '^q%d+ ') then return 'newer' end
  return 'foreign'
end

-- The value of a header flag of an own item, or nil. `mark` is ' x=' for flag x.
-- Long items are cut first, so that a search never walks through a body.
local HEADER_BYTES = 1024
local function flag(item, mark)
  local head = #item > HEADER_BYTES and string.sub(item, 1, HEADER_BYTES) or item
  local at = string.find(head, mark, 1, true)
  if not at then return nil end
  local line_end = string.find(head, '\n', 1, true)
  if line_end and at > line_end then return nil end
  return string.match(head, '^[^ \n]+', at + #mark)
end

-- Values of flags are percent-encoded by whoever sends.
local function percent_decoded(value)
  return (string.gsub(value, '%%(%x%x)', function(digits) return string.char(tonumber(digits, 16)) end))
end

local function level(item)
  local priority = tonumber(flag(item, ' p=') or 0)
  return priority and priority >= 1 and priority <= 9 and math.floor(priority) or 0
end

local HEADER = '^q1 ([%w._-]+) (%d+) (%d+) (%d+) (%d+) (%d+)([^\n]*)()\n'
local MAX_DIGITS = 6

-- The parts of an own item, or nil where the header does not match (then it is foreign).
local function parse(item)
  local id, sent, receives, nacks, timeouts, shared, flags, at = string.match(item, HEADER)
  if not id or #receives > MAX_DIGITS or #nacks > MAX_DIGITS or #timeouts > MAX_DIGITS
    or #shared > MAX_DIGITS or #sent > 16 then
    return nil
  end
  return {
    id = id, sent = sent, receives = tonumber(receives), nacks = tonumber(nacks),
    timeouts = tonumber(timeouts), shared = tonumber(shared), flags = flags, item = item, at = at,
  }
end

-- A plain item becomes an own one when it is first moved: named by its delivery, so that equal
-- bodies are never equal envelopes.
local function adopt(item, lease_id, index, now)
  return {
    id = lease_id .. '.' .. index, sent = string.format('%.0f', now), receives = 0, nacks = 0,
    timeouts = 0, shared = 0, flags = '', item = item, at = 0,
  }
end

-- The message behind a delivered item, or nil where it is foreign.
local function delivered(item, lease_id, index, now)
  local what = kind(item)
  if what == 'plain' then return adopt(item, lease_id, index, now) end
  if what == 'own' then return parse(item) end
  return nil
end

local function assemble(message)
  local body = message.at > 0 and string.sub(message.item, message.at) or '\n' .. message.item
  return string.format('q1 %s %s %d %d %d %d%s', message.id, message.sent, message.receives,
    message.nacks, message.timeouts, message.shared, message.flags) .. body
end

local function with_flag(message, key, value)
  if not string.find(message.flags, ' ' .. key .. '=', 1, true) then
    message.flags = message.flags .. ' ' .. key .. '=' .. value
  end
end
