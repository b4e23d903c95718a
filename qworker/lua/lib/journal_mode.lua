-- Open the journal of a script that reads no attributes. Include after journal.lua.

-- Returns a refusal for a key of another type, else nil.
local function open_journal_of(now)
  local found = redis.pcall('HMGET', meta, 'journal', 'journal_cap', 'journal_epoch', 'journal_shed')
  if found.err then return { 'BROKEN', meta, redis.call('TYPE', meta).ok } end
  open_journal({ mode = found[1], cap = found[2], epoch = found[3], shed = found[4] }, now)
  return book.on and broken({ stats, 'hash', journal, 'stream' }) or nil
end
