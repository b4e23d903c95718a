-- The slots of a batch share a field of `slots` until some of its messages are settled apart from the others, as the messages
-- share one of the lease:   <lease> → the groups of its messages as a MessagePack array, index 1 the first, false for none
-- After that, and for a message that was delivered alone:   <lease>:<index> → group
local packed_slots = {}
do
local MAX_FIELDS = 500 -- of one command

-- Whether no group in the field of a batch is counted.
function packed_slots.are_uncounted(found) return string.byte(found) == 1 end

-- Whether some group may not be counted: its \1 is behind the length of the array, which may have one itself.
function packed_slots.may_be_uncounted(found)
  return packed_slots.are_uncounted(found) or string.find(found, '\1', 3, true) ~= nil
end

-- The groups in the field of a batch, with a \1 before those that are not counted; nil if it is not such an array.
function packed_slots.unpacked(found)
  local mark = packed_slots.are_uncounted(found) and '\1' or ''
  local sound, names = pcall(cmsgpack.unpack, mark == '' and found or string.sub(found, 2))
  if not sound or type(names) ~= 'table' then return nil end
  for _, name in ipairs(names) do
    if name and type(name) ~= 'string' then return nil end
  end
  if mark ~= '' then
    for i, name in ipairs(names) do names[i] = name and mark .. name end
  end
  return names
end

-- The groups of a batch; nil if its slots share no field.
function packed_slots.read(slots, lease_id)
  local found = redis.call('HGET', slots, lease_id)
  return found and packed_slots.unpacked(found) or nil
end

-- Give each slot a field of its own.
function packed_slots.loosen(slots, lease_id)
  local names = packed_slots.read(slots, lease_id)
  if not names then return end
  local fields = {}
  for i, name in ipairs(names) do
    if name then fields[#fields + 1], fields[#fields + 2] = lease_id .. ':' .. i, name end
    if #fields >= MAX_FIELDS or i == #names and #fields > 0 then
      redis.call('HSET', slots, unpack(fields))
      fields = {}
    end
  end
  redis.call('HDEL', slots, lease_id)
end

-- Take the mark from slots that are not counted, `most` at most, of {token, value, …} as they stand in `slots`. Returns the
-- names of their groups, how many slots each has, and the number of all.
function packed_slots.unmark(slots, flat, most)
  local names, numbers, written, left = {}, {}, {}, most
  local function bare(slot)
    if left == 0 or not slot or string.byte(slot) ~= 1 then return slot end
    local name = string.sub(slot, 2)
    if not numbers[name] then names[#names + 1] = name end
    numbers[name], left = (numbers[name] or 0) + 1, left - 1
    return name
  end
  for i = 1, #flat, 2 do
    local token, value, before = flat[i], flat[i + 1], left
    if string.find(token, ':', 1, true) then
      value = bare(value)
    elseif left > 0 and packed_slots.may_be_uncounted(value) then
      local batch = packed_slots.unpacked(value) or {}
      for index, slot in ipairs(batch) do batch[index] = bare(slot) end
      value = cmsgpack.pack(batch)
    end
    if left < before then written[#written + 1], written[#written + 2] = token, value end
  end
  for first = 1, #written, MAX_FIELDS do
    redis.call('HSET', slots, unpack(written, first, math.min(first + MAX_FIELDS - 1, #written)))
  end
  return names, numbers, most - left
end

-- Visit about `most` slots. `cursor`: '0' at first; of HSCAN, with the index and the field where the next call goes on if there
-- are more, as a batch may have. Returns the next cursor, '0' at the end.
function packed_slots.each(slots, cursor, most, visit)
  local seen, at, passed, field = 0, string.match(cursor, '^(%d+) ?(%d*) ?(.*)$')
  passed = tonumber(passed) or 0
  repeat
    local page, fields, values = redis.call('HSCAN', slots, at, 'COUNT', 1), {}, {}
    for i = 1, #page[2], 2 do fields[#fields + 1], values[page[2][i]] = page[2][i], page[2][i + 1] end
    table.sort(fields)
    for _, each in ipairs(fields) do
      local batch = each >= field and not string.find(each, ':', 1, true) and packed_slots.unpacked(values[each])
      batch = batch or each >= field and { values[each] } or {}
      for i = (each == field and passed or 0) + 1, #batch do
        if seen >= most then return at .. ' ' .. (i - 1) .. ' ' .. each end
        seen = seen + 1
        if batch[i] then visit(batch[i]) end
      end
    end
    at, field, seen = page[1], '', seen + 1
  until at == '0' or seen >= most
  return at
end

-- The cursor of HSCAN in such a cursor.
function packed_slots.scanned(cursor) return string.match(cursor, '^(%d+) %d+ .+$') or cursor end
end
