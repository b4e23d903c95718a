-- The envelope: `q1 <id> <sent_ms> <receives> <nacks> <timeouts> <shared>[ k=v …]\n<body>`.
-- These functions never decode a body, and never raise, whatever an item contains.

local byte, find = string.byte, string.find -- called for every item; a global is looked up by name at each use

-- own: our format · plain: JSON pushed by another program · newer: another version of our format · foreign: the rest.
local function kind(item)
  local a, b, c = byte(item, 1, 3)
  if a == 113 and b == 49 and c == 32 then return 'own' end -- q1 and a space
  if a == 123 or a == 91 then return 'plain' end -- { [
  if a == 113 and string.find(item, '^q%d+ ') then return 'newer' end
  return 'foreign'
end

-- The header of an own item, without `q1 `; '' if it has no end. Lookups use the header alone, so that no body is ever
-- searched.
local function header(item)
  local stop = string.find(item, '\n', 1, true)
  return stop and string.sub(item, 4, stop - 1) or ''
end

-- Whether the header of an own item may have a flag; without a copy of it.
local function has_flags(item)
  local at = find(item, '=', 1, true)
  return at and at < (find(item, '\n', 1, true) or 0)
end

-- The value of a flag in a header, or nil. `mark` is ' x=' for flag x. Most headers have no flag at all.
local function flag_in(head, mark)
  if not string.find(head, '=', 1, true) then return nil end
  local at = string.find(head, mark, 1, true)
  return at and string.match(head, '^[^ ]+', at + #mark)
end

-- The value of a flag of an own item, or nil.
local function flag(item, mark)
  return flag_in(header(item), mark)
end

-- The value of a flag that is a whole number of at most 2^53, otherwise nil; the same rule as in `wire/numbers.py`.
-- Compared as text: beyond that a number is rounded before it can be compared.
local MAX_NUMBER = '9007199254740992'
local function number_in(head, mark)
  local value = flag_in(head, mark)
  if not value or not string.find(value, '^%d+$') then return nil end
  return (#value < #MAX_NUMBER or #value == #MAX_NUMBER and value <= MAX_NUMBER) and tonumber(value) or nil
end

-- The priority that a header asks for.
local function level_in(head)
  local priority = number_in(head, ' p=') or 0
  return priority <= 9 and priority or 0
end

local function level(item)
  return level_in(header(item))
end

-- How many items of a list to read next, within `bytes_left` judging by those already read: a read copies whole items,
-- and bodies may be large. So the first one is read alone; a hundred small ones take four reads.
local function chunk_size(number, bytes, bytes_left)
  local MAX_CHUNK = 33
  if number == 0 then return 1 end
  return math.max(1, math.min(MAX_CHUNK, math.ceil(bytes_left * number / math.max(bytes, 1))))
end

local HEADER = '^q1 ([%w._-]+) (%d+) (%d+) (%d+) (%d+) (%d+)([^\n]*)()\n'
local MAX_DIGITS, MAX_ID = 6, 64

-- The parts of an own item, or nil if the header does not match (then it is foreign).
local function parse(item)
  local id, sent, receives, nacks, timeouts, shared, flags, at = string.match(item, HEADER)
  if not id or #receives > MAX_DIGITS or #nacks > MAX_DIGITS or #timeouts > MAX_DIGITS
    or #shared > MAX_DIGITS or #sent > 16 or #id > MAX_ID then
    return nil
  end
  if flags ~= '' and string.gsub(flags, ' [a-z]=[^ ]*', '') ~= '' then return nil end
  return {
    id = id, sent = sent, receives = tonumber(receives), nacks = tonumber(nacks),
    timeouts = tonumber(timeouts), shared = tonumber(shared), flags = flags, item = item, at = at,
  }
end

-- A plain item becomes an own one when it is first moved. Its id comes from its delivery, so that
-- equal bodies never make equal envelopes.
local function adopt(item, lease_id, index, now)
  return {
    id = lease_id .. '.' .. index, sent = string.format('%.0f', now), receives = 0, nacks = 0,
    timeouts = 0, shared = 0, flags = '', item = item, at = 0,
  }
end

-- The message of a delivered item, or nil if it is foreign.
local function delivered(item, lease_id, index, now)
  local what = kind(item)
  if what == 'plain' then return adopt(item, lease_id, index, now) end
  if what == 'own' then return parse(item) end
  return nil
end

-- Formatting a number is slow, and most repeat: counters are small, and times are those of the call.
local DIGITS = { [0] = '0', '1', '2', '3', '4', '5', '6', '7', '8', '9' }
local function digits(number)
  return DIGITS[number] or string.format('%d', number)
end

local formatted_ms, formatted
local function time_text(at_ms)
  if at_ms ~= formatted_ms then formatted_ms, formatted = at_ms, text(at_ms) end
  return formatted
end

local function assemble(message)
  local body = message.at > 0 and string.sub(message.item, message.at) or '\n' .. message.item
  return 'q1 ' .. message.id .. ' ' .. message.sent .. ' ' .. digits(message.receives) .. ' ' .. digits(message.nacks)
    .. ' ' .. digits(message.timeouts) .. ' ' .. digits(message.shared) .. message.flags .. body
end

local function with_flag(message, key, value)
  if not string.find(message.flags, ' ' .. key .. '=', 1, true) then
    message.flags = message.flags .. ' ' .. key .. '=' .. value
  end
end

-- Note when a message becomes ready again: the flag `t`, from which its next wait is measured. It loses its old place.
local function ready_from(message, at_ms)
  local flags = message.flags
  if string.find(flags, ' t=', 1, true) then flags = string.gsub(flags, ' t=[^ ]*', '') end
  if string.find(flags, ' o=', 1, true) then flags = string.gsub(flags, ' o=[^ ]*', '') end
  message.flags = flags .. ' t=' .. time_text(at_ms)
end
