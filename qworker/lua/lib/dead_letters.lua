-- Dead letters: entries of the dead STREAM as XRANGE gives them, {id, {field, value, …}}.

-- A field of a dead letter; '' if it has none.
local function letter_field(entry, name)
  for i = 1, #entry[2], 2 do
    if entry[2][i] == name then return entry[2][i + 1] end
  end
  return ''
end

-- The dead letter of this complete id, or nil.
local function letter(id)
  return redis.call('XRANGE', dead, id, id)[1]
end

local function is_letter_id(word)
  local time_ms, number = string.match(word, '^(%d+)%-(%d+)$')
  return time_ms ~= nil and #time_ms <= 19 and #number <= 19
end

-- A refusal if ARGV from 2 on, up to `last` or the end, are not 1-100 complete ids: an incomplete id means a range to
-- XRANGE and another entry to XDEL.
local function bad_letters(last)
  last = last or #ARGV
  if last > 101 then return { 'ARG', 'entries' } end
  for i = 2, last do
    if not is_letter_id(ARGV[i]) then return { 'ARG', 'entry id' } end
  end
  return nil
end
