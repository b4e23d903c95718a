#!lua
-- edit.lua: give a dead letter another body: add a new entry at the end, then delete the old one.
-- The header stays byte for byte except for flags of the body, as do the other fields; the new entry names the old
-- one as `edited`.
-- ROLES      operator
-- KEYS       see lib/keys.lua; no leases
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2]    entry id         of the dead letter
-- ARGV[3]    body
-- ARGV[4]    flags            may be left out; ` k=v …` of the new body: e (codec) and s (signature). Those of the old body
--                             and n (its schedule) are removed
-- Returns {'OK', now ms, entry id of the new entry}, where the id is '' if the old entry does not exist, and 'foreign'
--   if it is not one of our messages; or {'TOOLARGE', bytes, maxsize} {'BROKEN', key, type} {'ARG', name}
-- O(1). A call that is repeated after a lost reply finds the entry it added among the last 16.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/keys.lua
--- include lib/envelope.lua
--- include lib/dead_letters.lua

local RECENT, MAX_BYTES = 16, 8388608 -- bodies may be large, and a repeated call comes soon
local MAX_FIELDS = 64 -- of an entry, names and values; ours have ten

-- The entry that an earlier attempt of this call added, or '': also if another call gave it another body.
local function made_before(id, body)
  local last, bytes = '+', 0
  for _ = 1, RECENT do
    local entry = redis.call('XREVRANGE', dead, last, '-', 'COUNT', 1)[1]
    if not entry or bytes > MAX_BYTES then return '' end
    local envelope = letter_field(entry, 'envelope')
    if letter_field(entry, 'edited') == id then
      return string.sub(envelope, -#body - 1) == '\n' .. body and entry[1] or ''
    end
    last, bytes = '(' .. entry[1], bytes + #envelope
  end
  return ''
end

local refused = broken({ meta, 'hash', dead, 'stream' }) or #ARGV ~= 3 and #ARGV ~= 4 and { 'ARG', 'body' }
  or ARGV[4] and string.gsub(ARGV[4], ' [es]=[%w._~-]+', '') ~= '' and { 'ARG', 'flags' } or bad_letters(2)
if refused then return refused end
local now = clock(ARGV[1], meta)
if not now then return { 'ARG', 'now' } end
local id, body = ARGV[2], ARGV[3]
local maxsize = whole(redis.call('HGET', meta, 'maxsize'), 1, MAX_MS)
if maxsize and #body > maxsize then return { 'TOOLARGE', text(#body), text(maxsize) } end

local entry = letter(id)
if not entry then return { 'OK', text(now), made_before(id, body) } end
local message = parse(letter_field(entry, 'envelope'))
if not message then return { 'OK', text(now), 'foreign' } end

local head = string.sub(message.item, 1, message.at - 1)
if ARGV[4] then head = string.gsub(head, ' [ens]=[^ ]*', '') .. ARGV[4] end
local fields = { 'envelope', head .. '\n' .. body, 'edited', id }
for i = 1, math.min(#entry[2], MAX_FIELDS), 2 do
  local name = entry[2][i]
  if name ~= 'envelope' and name ~= 'edited' then
    fields[#fields + 1] = name
    fields[#fields + 1] = entry[2][i + 1]
  end
end
local added = redis.call('XADD', dead, '*', unpack(fields))
redis.call('XDEL', dead, id)
return { 'OK', text(now), added }
