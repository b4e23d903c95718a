-- The order of returned messages. A returned message goes to its old place among the earlier returned ones at the head of
-- ready, whichever lease comes first. Those have the flag `o`, and stand in front of all that were never delivered. The old
-- place is the time at which a message became ready, in ms; within one ms, ids of one process decide. Beyond that the order
-- is unknown: then a later call goes to the front, and within one call a later lease goes behind the others.

-- When a message became ready before it was delivered, in ms. A plain one has just received its header.
local function old_place(message, received)
  if message.at == 0 then return received or tonumber(message.sent) end
  return number_in(message.flags, ' o=') or number_in(message.flags, ' t=') or tonumber(message.sent)
end

local MAX_PASSED, MAX_PASSED_BYTES = 1000, 262144 -- how many messages, and their bytes, one lease may be put behind
local passable, passable_bytes = 2 * MAX_PASSED, 2 * MAX_PASSED_BYTES -- how much of that is left for all leases of the call

-- Whether another lease may be put back by this call: few messages were passed so far, which are all written again.
local FEW_PASSED = 300
local function may_pass()
  return passable > 2 * MAX_PASSED - FEW_PASSED and passable_bytes >= MAX_PASSED_BYTES
end

-- Put items, whose old places are `order`, at the head of a list of ready. `later`: everything else that this call returns
-- was delivered before. The functions are nested because a server creates those of a script again at each call.
local function push_heads(key, items, order, later)
  local AT_ONCE = 500

  local function id_of(item) return string.match(item, '^q1 (%S+)') or '' end

  -- Whether the first of two ids made by one process was made before the other; nil if they were not.
  local function id_before(one, other)
    if #one == 20 and #other == 20 and string.sub(one, 1, 10) == string.sub(other, 1, 10) then return one < other end
    local maker, number, index = string.match(one, '^(%w+)%-(%d+)[%d-]*%.(%d+)$')
    local other_maker, other_number, other_index = string.match(other, '^(%w+)%-(%d+)[%d-]*%.(%d+)$')
    if not maker or maker ~= other_maker then return nil end
    if number ~= other_number then return tonumber(number) < tonumber(other_number) end
    return tonumber(index) < tonumber(other_index)
  end

  -- Whether a message at the head stays in front of one that comes back.
  local function stays_before(head_ms, head_id, at_ms, id)
    if head_ms ~= at_ms then return head_ms < at_ms end
    local before = id_before(head_id, id)
    if before == nil then return later end
    return before
  end

  -- The returned messages at the head that became ready before the last of the items: {item, ms, id} each.
  local function read_passed()
    local passed, bytes, step, last_ms, last_id = {}, 0, 1, order[#order], id_of(items[#items])
    local most, most_bytes = math.min(MAX_PASSED, passable), math.min(MAX_PASSED_BYTES, passable_bytes)
    while #passed < most and bytes < most_bytes do
      local chunk = redis.call('LRANGE', key, #passed, #passed + step - 1)
      for _, item in ipairs(chunk) do
        local at_ms = kind(item) == 'own' and number_in(header(item), ' o=')
        if not at_ms or not stays_before(at_ms, id_of(item), last_ms, last_id) then return passed end
        passed[#passed + 1] = { item, at_ms, id_of(item) }
        bytes = bytes + #item
      end
      if #chunk < step then break end
      step = math.min(#passed, 32, most - #passed) -- doubles what was read: bodies may be large
    end
    return passed
  end

  local passed, merged, next_passed = read_passed(), items, 1
  if #passed > 0 then
    passable, merged = passable - #passed, {}
    for _, each in ipairs(passed) do passable_bytes = passable_bytes - #each[1] end
    for i, item in ipairs(items) do
      local id, head = id_of(item), passed[next_passed]
      while head and stays_before(head[2], head[3], order[i], id) do
        merged[#merged + 1] = head[1]
        next_passed = next_passed + 1
        head = passed[next_passed]
      end
      merged[#merged + 1] = item
    end
    for i = next_passed, #passed do merged[#merged + 1] = passed[i][1] end
    -- Push first: a user without the right to push is refused before anything is trimmed. The trim removes the extra item.
    redis.call('LPUSH', key, '')
    redis.call('LTRIM', key, #passed + 1, -1)
  end
  for last = #merged, 1, -AT_ONCE do
    local reversed = {}
    for i = last, math.max(last - AT_ONCE + 1, 1), -1 do reversed[#reversed + 1] = merged[i] end
    redis.call('LPUSH', key, unpack(reversed))
  end
end
