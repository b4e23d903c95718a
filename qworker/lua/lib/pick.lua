-- Take one waiting item, given as it is stored, out of where it waits; one of several equal ones. Who asks has read it
-- before, so it may be gone by now.

-- Where an item waits: 'delayed' and its due ms, or the key of a list, which is read to find it; nil where it is not seen.
local function waits_in(item, levels)
  local due_ms = tonumber(redis.call('ZSCORE', delayed, item))
  if due_ms then return 'delayed', due_ms end
  if redis.call('LPOS', suspect, item, 'RANK', -1) then return suspect end
  for _, number in ipairs(levels) do
    if redis.call('LPOS', ready(number), item, 'RANK', -1) then return ready(number) end
  end
  return nil
end

local function take_out(item, place)
  if place == 'delayed' then redis.call('ZREM', delayed, item) else redis.call('LREM', place, -1, item) end
end

local MAX_PICKED = 100
-- A refusal where ARGV from 2 on are not 1-100 items of ours.
local function bad_items()
  if #ARGV < 2 or #ARGV > MAX_PICKED + 1 then return { 'ARG', 'items' } end
  for i = 2, #ARGV do
    if kind(ARGV[i]) ~= 'own' or not parse(ARGV[i]) then return { 'ARG', 'item' } end
  end
  return nil
end
