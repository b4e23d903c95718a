-- The short way of a settle, see lib/lone_acks.lua.
local function settle_alone()
  local unacked, meta, stats = KEYS[13], KEYS[16], KEYS[17]
  local prefix = string.sub(meta, 1, -5) .. 'lease:'
  local leases = #KEYS - 20
  if leases < 1 or not acks_alone(3, prefix, leases) then return nil end
  if redis.pcall('HGET', meta, 'journal') or not have_one_field(leases)
    or type(redis.pcall('ZCARD', unacked)) ~= 'number' then
    return nil
  end
  local now = clock(ARGV[1], meta)
  if not now or type(redis.pcall('HINCRBY', stats, 'acked', leases)) ~= 'number' then return nil end
  local settled, degraded = ack_alone(leases, prefix, leases, 0)
  return { 'OK', text(now), degraded, settled, settled }
end
local alone = settle_alone()
if alone then return alone end
