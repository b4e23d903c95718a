-- What follows the end of a member in its group of calls, see gather.lua.

local MAX_VALUES = 67108864 -- 64 MiB

-- A list that join.lua has stored, or nil.
function joins.list(packed)
  local read, list = pcall(cmsgpack.unpack, packed or '')
  return read and type(list) == 'table' and list or nil
end

-- The message of the callback as it would be stored, or nil if a run follows.
local function callback_of(join)
  local after = joins.list(redis.call('HGET', join, '@then'))
  return after and { priority = after[1], delay_ms = after[2], ttl_ms = after[3], head = after[4], tail = after[5] }
end

local function record_decided(id, outcome, follows)
  local join = joins.key(id)
  if book.on then book.record_group('group_decided', id, redis.call('HGET', join, '@made'), outcome, follows) end
end

-- Send the callback, or wake the run.
local function decide(id, outcome, to, woken, now, amounts)
  local join = joins.key(id)
  local new, target = callback_of(join), joins.list(redis.call('HGET', join, '@run'))
  record_decided(id, outcome, target and target[1] or id)
  if new then
    push_new(new, to, now, amounts)
  elseif target then
    local key, runs = run_key(target[1]), runs_key()
    -- A run that has ended needs nothing more.
    if redis.call('ZSCORE', runs, target[1]) then
      local _, item = wake_run(key, target[2], '\n1', to, now)
      if item then
        woken[#woken + 1] = item
        amounts.promoted = (amounts.promoted or 0) + 1
      end
    end
  end
  amounts.gathered = (amounts.gathered or 0) + 1
end

-- Decide a group before all of its members have ended: the values stay for the run.
local function end_early(id, to, woken, now, amounts)
  local join, index = joins.key(id), joins.index()
  redis.call('HSET', join, '@over', text(now))
  redis.call('ZREM', index, id)
  decide(id, 'cancelled', to, woken, now, amounts)
end

-- Notify clients that wait for the callback: the member `told` has ended so; nil: the group continues.
local function tell_callback(join, words, now)
  local new = callback_of(join)
  if not new then return end
  local item = new.head .. stamp(now, 0, 0) .. new.tail
  if words then
    end_result(item, words)
  else
    forget_result(header(item), string.match(new.head, '^q1 ([%w._-]+)'))
  end
end

-- With the first success, tell the queues of the members that have not ended to cancel them.
local function cancel_rest(id, now)
  local join = joins.key(id)
  local rest, ended = joins.list(redis.call('HGET', join, '@rest')), {}
  if not rest then return end
  redis.call('HSET', join, '@rest', '')
  for _, name in ipairs(redis.call('HKEYS', join)) do ended[name] = true end
  for queue, parts in pairs(rest) do
    local left = {}
    for part in string.gmatch(parts, '%S+') do
      if not ended[string.match(part, '^%d+')] then left[#left + 1] = part end
    end
    local entry = { 'join', id, 'member', '0', 'words', 'rest ' .. table.concat(left, ' ') }
    if #left > 0 and not pcall(send_out, queue, id, entry, now) then missed = 1 end
  end
end

-- Cancel messages of a group, `parts` of their ids. A day is the least time for which the id of a group is taken: another one
-- of this id does not meet the tombstones.
local function leave_tombstones(id, parts, now)
  local DAY_MS, MAX_WORDS, words = 86400000, 4000, {}
  local expiry = text(now + DAY_MS)
  for part in string.gmatch(parts, '%d[%d-]*') do
    words[#words + 1], words[#words + 2] = expiry, id .. '.' .. part
    if #words == MAX_WORDS then
      redis.call('ZADD', cancelled, 'GT', unpack(words))
      words = {}
    end
  end
  if #words > 0 then redis.call('ZADD', cancelled, 'GT', unpack(words)) end
end

-- Count the end of a member; returns 1 if it decided the group, else 0.
local function count_end(id, member, words, to, woken, now, amounts)
  local join, index, parts = joins.key(id), joins.index(), string.match(words, '^rest (.*)$')
  if parts then
    leave_tombstones(id, parts, now)
    return 0
  end
  local found = redis.pcall('HMGET', join, '@size', '@policy', '@left', '@over', '@dead', '@told', '@bytes', member)
  local size, policy, left, dead, told = tonumber(found[1]), found[2], tonumber(found[3]), found[5] or ' ', found[6] or nil
  local older, bytes = found[8], tonumber(found[7]) or 0
  if found.err or not size or not left or found[4] or tonumber(member) >= size then return 0 end
  local is_ok, is_dead = string.find(words, '^ok[ \n]') ~= nil, string.find(words, '^dead ') ~= nil
  local was_dead = string.find(dead, ' ' .. member .. ' ', 1, true)
  if older and not was_dead or not older and words == '' then return 0 end

  -- 1 for a member that has ended in these words and is waited for nevertheless, else 0.
  local function waits(ended)
    if policy == 'successes' then return string.find(ended, '^ok[ \n]') and 0 or 1 end
    return ended == '' and 1 or 0
  end
  if was_dead then dead = string.sub(dead, 1, was_dead) .. string.sub(dead, was_dead + #member + 2) end
  if is_dead then dead = dead .. member .. ' ' end
  -- A dead member that is dropped keeps its state, now for good.
  local kept = was_dead and words ~= '' and not is_ok and not is_dead and older or words
  if bytes + #kept > MAX_VALUES then
    is_ok, kept = false, 'dead bad_result InvalidResultError - - ' .. id .. '.' .. member .. '\nthe values of the group have over 64 MiB'
  end
  if kept == '' then redis.call('HDEL', join, member) else redis.call('HSET', join, member, kept) end
  left = left + waits(kept) - waits(older or '')
  redis.call('HSET', join, '@left', text(left), '@dead', dead, '@bytes', text(bytes + #kept - #(older or '')))

  local fires = policy == 'first' and is_ok or policy ~= 'first' and left == 0
  local failed = not fires and kept ~= '' and
    (policy == 'successes' and not is_ok and not is_dead or policy == 'first' and left == 0 and dead == ' ')
  if fires or failed then
    redis.call('HSET', join, '@over', text(now))
    redis.call('ZREM', index, id)
  end
  local is_for_run = redis.call('HEXISTS', join, '@run') == 1
  if fires or failed and is_for_run then
    if fires then cancel_rest(id, now) end
    if told then tell_callback(join, nil, now) end
    decide(id, fires and 'ok' or 'failed', to, woken, now, amounts)
    return 1
  end
  -- Clients that wait for the callback see a dead member until it is redriven.
  local shown = failed and member or policy == 'successes' and string.match(dead, '^ (%d+)')
    or policy == 'first' and left == 0 and string.match(dead, '^ (%d+)') or nil
  if shown ~= told then
    if shown then redis.call('HSET', join, '@told', shown) else redis.call('HDEL', join, '@told') end
    tell_callback(join, shown and redis.call('HGET', join, shown), now)
  end
  if not failed then return 0 end
  record_decided(id, 'failed', '-')
  joins.finish(id)
  return 1
end
