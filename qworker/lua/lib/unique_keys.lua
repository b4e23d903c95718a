-- Unique keys of new messages: which of these are kept out, and which take the place of one that waits.
--   unique HASH   unique key → `<message id> <expiry ms>`, then ` for` if it is held whatever becomes of the message, or
--                 ` @<due ms> <ms of the first one>` if a later message may replace it until it is due
local unique = KEYS[7]

-- A delayed message that may be replaced; nil if it is not delayed any more.
local function replaceable(id, due_ms)
  for first = 0, 900, 100 do
    local page = redis.call('ZRANGEBYSCORE', delayed, due_ms, due_ms, 'LIMIT', first, 100)
    for _, item in ipairs(page) do
      if string.sub(item, 1, #id + 4) == 'q1 ' .. id .. ' ' then return item end
    end
    if #page < 100 then return nil end
  end
end

-- The hold of a message on its key. One that may be replaced (`~`) has a delay of its own, and perhaps the item that it
-- replaces; it is postponed to `most_ms` after the first of them at most, 0: without a limit.
local function new_hold(mode, ms, message, own, id, due_ms, first_ms, delay_ms, ttl_ms, now)
  local hold = { id = own, message = message, earlier = {}, more = mode == '=' and ' for' or '' }
  if mode == '~' then
    hold.item = due_ms and id ~= own and replaceable(id, due_ms)
    hold.first_ms = hold.item and tonumber(first_ms) or now
    hold.delay_ms = ms > 0 and math.max(math.min(delay_ms, hold.first_ms + ms - now), 0) or delay_ms
    hold.more = ' @' .. text(now + hold.delay_ms) .. ' ' .. text(hold.first_ms)
    ms = MAX_MS
  elseif mode == '' and ttl_ms > 0 then
    ms = math.min(ms, ttl_ms) -- what has expired will not run
  end
  hold.until_ms = math.min(now + ms, MAX_MS)
  return hold
end

-- Read the keys of a call. Returns a list {message number, id of the holder, …} of the messages that are kept out, the same
-- as a set, key → hold, how many waiting messages are replaced, and message number → delay ms where it is not that of
-- the call; nil for wrong words, or nil and an error.
local function take_keys(first_key, keyed, number, delay_ms, ttl_ms, now, id_of)
  local kept_out, outside, holds, replaced, sooner = {}, {}, {}, 0, {}
  local function keep_out(message, id)
    kept_out[#kept_out + 1] = text(message)
    kept_out[#kept_out + 1] = id
    outside[message] = true
  end
  for i = 0, keyed - 1 do
    local at = first_key + 1 + 3 * i
    local message, key = whole(ARGV[at], 1, number), ARGV[at + 1]
    local mode, ms = string.match(ARGV[at + 2] or '', '^([=~]?)(%d+)$')
    ms = whole(ms, mode == '~' and 0 or 1, MAX_MS)
    local own = message and id_of(message)
    if not ms or not own then return nil end
    -- Asked at the first one as well, which has nothing to replace: a producer may not read messages.
    if mode == '~' and not redis.acl_check_cmd('ZRANGEBYSCORE', delayed, '0', '0') then
      return nil, redis.error_reply('NOPERM this user may not read the delayed messages, as debounce does: it needs the role consumer')
    end
    local id, until_ms, more = string.match(redis.call('HGET', unique, key) or '', '^(%S+) (%d+)(.*)$')
    if not id or tonumber(until_ms) <= now then id, more = nil, '' end
    local before, due_ms, first_ms = holds[key], string.match(more, '^ @(%d+) (%d+)$')
    if before and mode == '~' and before.first_ms then
      table.insert(before.earlier, before.message) -- the last one of a call wins
      before.id, before.message = own, message
    elseif before then
      keep_out(message, before.id)
    elseif id and id ~= own and not (mode == '~' and due_ms) then
      keep_out(message, id)
    else
      holds[key] = new_hold(mode, ms, message, own, id, due_ms, first_ms, delay_ms, ttl_ms, now)
      if holds[key].item then replaced = replaced + 1 end
    end
  end
  for _, hold in pairs(holds) do
    for _, message in ipairs(hold.earlier) do keep_out(message, hold.id) end
    if hold.delay_ms and hold.delay_ms ~= delay_ms then sooner[hold.message] = hold.delay_ms end
  end
  return kept_out, outside, holds, replaced, sooner
end

-- The messages are stored: they have their keys, and those that they replace go.
local function write_keys(holds)
  for key, hold in pairs(holds) do
    redis.call('HSET', unique, key, hold.id .. ' ' .. text(hold.until_ms) .. hold.more)
    if hold.item then
      redis.call('ZREM', delayed, hold.item)
      record('cancelled', hold.item)
    end
  end
end
