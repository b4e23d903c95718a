-- The attributes of a queue that senders read.

-- Read the attributes; nil and a refusal if meta is not a HASH.
local function read_attributes()
  local found = redis.pcall('HMGET', meta, 'paused', 'maxlen', 'maxsize', 'delay_ms', 'ttl_ms', 'levels',
    'journal', 'journal_cap', 'journal_epoch', 'journal_shed', 'shard', 'shards', 'groups')
  if found.err then return nil, { 'BROKEN', meta, redis.call('TYPE', meta).ok } end
  return {
    paused_in = found[1] == 'in' or found[1] == 'all',
    -- No worker is woken while the queue is rate limited, either.
    paused_out = found[1] == 'out' or found[1] == 'all' or found[1] and string.find(found[1], '^until ') ~= nil,
    maxlen = whole(found[2], 0, MAX_MS) or 0,
    maxsize = whole(found[3], 0, MAX_MS) or 0,
    delay_ms = whole(found[4], 0, MAX_MS) or 0,
    ttl_ms = whole(found[5], 0, MAX_MS) or 0,
    levels = found[6] or '',
    closed = string.find(meta, '/%d+}:meta$') and not string.find(found[11] or '', '^open ') and (found[11] or '') or nil,
    shards = found[12],
    groups = found[13] == '1',
    journal = { mode = found[7], cap = found[8], epoch = found[9], shed = found[10] },
  }
end
