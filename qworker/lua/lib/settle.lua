-- Apply the outcomes that lib/outcomes.lua read.

-- Acks without journal groups of the caller are recorded by the script, which reads the items before it deletes them.
local function reads_acks(lease)
  return book.on and not book.shed and lease.told_number == 0
end

local function record_held(lease, index)
  local item = redis.call('HGET', lease.key, index)
  if item then record('acked', item, { lease = lease.id, index = index }) end
end

-- The caller's groups are used if all of their acks counted. If only some did, `results` says which; times belong to
-- the whole group, so they are left out then.
local function record_told(lease, acked, results, at)
  if lease.told_number == acked or book.shed then
    for _, group in ipairs(lease.told) do book.add_group(group.text, group.number) end
    book.events = book.events + acked - lease.told_number
  elseif results and not lease.all then
    for _, group in ipairs(lease.told) do
      local first = string.gsub(string.match(group.text, '^[^\n]*'), '^(%S+ %S+) %S+', '%1 -')
      for header in string.gmatch(group.text, '\nq1 ([^\n]*)') do
        if results[at] == 1 then book.add_row(first, header) end
        at = at + 1
      end
    end
  else
    book.add_row(string.format('unsure - - - %d_of_%d -', acked, lease.told_number), book.header_of(''))
  end
end

local function settle_ack(lease, results)
  local acked, reads = 0, reads_acks(lease)
  for _, it in ipairs(lease.uniques) do
    if reads then record_held(lease, it[1]) end
    local held = redis.call('HDEL', lease.key, it[1])
    if held == 1 then free_unique(it[2], it[3]) end
    if has_groups then groups().vacate(lease.id .. ':' .. it[1]) end
    acked = acked + held
    if results then results[#results + 1] = held end
  end
  if has_groups then groups().vacate_all(lease.id, lease.acks) end
  if results or reads then
    for _, index in ipairs(lease.acks) do
      if reads then record_held(lease, index) end
      local held = redis.call('HDEL', lease.key, index)
      acked = acked + held
      if results then results[#results + 1] = held end
    end
  else
    acked = acked + take_out_of(lease.key, lease.acks)
  end
  return acked
end

-- The number of acked messages if they are a complete batch, each acked once: the same as '*'.
local function whole_batch(lease)
  local number, seen = #lease.acks, {}
  if number < 2 or #lease.uniques + #lease.others > 0 or batch_size(lease.key) ~= number then return nil end
  for _, index in ipairs(lease.acks) do
    index = whole(index, 1, number)
    if not index or seen[index] then return nil end
    seen[index] = true
  end
  return number
end

-- Free the slots of all that is left in a lease; its items are not read.
local function free_slots(lease)
  if groups().vacate_batch(lease.id) then return end
  local size, indices = redis.call('HLEN', lease.key) == 1 and batch_size(lease.key), {}
  for i = 1, size or 0 do indices[i] = i end
  groups().vacate_all(lease.id, size and indices or redis.call('HKEYS', lease.key))
end

local function ack_rest(lease, acked)
  if has_groups then free_slots(lease) end
  if reads_acks(lease) then
    for _, entry in ipairs(read_lease(lease.key)) do
      record('acked', entry[2], { lease = lease.id, index = entry[3] })
    end
  end
  redis.call('DEL', lease.key)
  return acked
end

-- Apply what `read_outcomes` read. Returns the number of messages settled per lease; `results`,
-- where given, gets 1 or 0 per outcome in the order uniques, acks, others.
local function settle(leases, attributes, results, now, amounts)
  local settled, rung, grouped = {}, 0, has_groups
  if grouped then groups().begin() end
  for l, lease in ipairs(leases) do
    local first = results and #results + 1
    local acked, held, stale = 0, 0, 0
    local batch = not lease.all and whole_batch(lease)
    if batch then
      for _ = 1, results and batch or 0 do results[#results + 1] = 1 end
      lease.all, lease.acks = true, {}
    end
    if #lease.acks + #lease.uniques + #lease.others > 0 then
      loosen(lease.key)
      acked = settle_ack(lease, results)
      local moved, missed, ready_again = settle_others(lease, attributes, results, l > 1, now, amounts)
      held, rung = acked + moved, rung + ready_again
      stale = #lease.acks + #lease.uniques - acked + missed
    end
    if lease.all then
      local rest = ack_rest(lease, batch or count_held(lease.key))
      acked, held = acked + rest, held + rest
    end
    if book.on and acked > 0 and not reads_acks(lease) then record_told(lease, acked, results, first) end
    amounts.acked = (amounts.acked or 0) + acked
    amounts.stored = (amounts.stored or 0) - acked
    if lease.all or redis.call('EXISTS', lease.key) == 0 then redis.call('ZREM', unacked, lease.id) end
    amounts.unacked = (amounts.unacked or 0) - held
    amounts.stale = (amounts.stale or 0) + stale
    settled[l] = held
  end
  if grouped then groups().finish() end
  if has_groups then rung = rung + groups().opened end
  return settled, rung
end
