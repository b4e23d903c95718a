-- Doorbell and counters come last, in this order, and must not fail the call: the change itself is done by then.
local missed = 0 -- 1 once the doorbell could not be rung, or the dead letters took no more

-- Returns 1 (degraded) if a counter failed now or a write was missed before, else 0.
local function count(stats, amounts)
  local degraded = missed
  for name, amount in pairs(amounts) do
    if amount ~= 0 then
      local reply = redis.pcall('HINCRBY', stats, name, string.format('%.0f', amount))
      if type(reply) == 'table' and reply.err then degraded = 1 end
    end
  end
  return degraded
end

-- Wake up to `messages` waiting consumers. The doorbell is bounded: a consumer that wakes and leaves
-- messages behind rings again, so eight tokens start any number of consumers.
local MAX_TOKENS, TOKENS = 8, { '1', '1', '1', '1', '1', '1', '1', '1' }
local function ring(wake, messages)
  local tokens = redis.pcall('LLEN', wake)
  if type(tokens) ~= 'number' then
    missed = 1
    return
  end
  local lacking = math.min(messages, MAX_TOKENS) - tokens
  if lacking > 0 and type(redis.pcall('RPUSH', wake, unpack(TOKENS, 1, lacking))) ~= 'number' then missed = 1 end
end
