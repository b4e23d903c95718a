-- The stream of the journal: writes what lib/journal.lua recorded as entries, numbered and capped in bytes.

local ENTRY_BYTES = 64 -- an entry's own size without its groups, approximately
local TRIM_EVERY = 16

-- The bytes before the first entry from `id` on, its epoch and its number; nil without such an entry.
local function entry_from(id)
  local entry = redis.call('XRANGE', journal, id, '+', 'COUNT', 1)[1]
  if not entry then return nil end
  local epoch, number = string.match(entry[1], '^(%d+)%-(%d+)$')
  return whole(entry[2][6], 0, MAX_MS), tonumber(epoch), tonumber(number), entry[1]
end

-- Write the recorded events. The change itself is done by then, so this must not fail the call: returns 1 (degraded)
-- if the journal could not be written, else 0.
local function write_journal(who)
  if book.events == 0 then return 0 end
  book.close()

  -- Begin a new epoch, later than all in the stream: the counters are new or were lost. Its last bits are drawn from what
  -- is written (message ids are random): a journal that was removed or rolled back never has the same epoch again, whatever
  -- the clock says. The count of bytes continues from the stream's.
  local function begin_epoch(counted)
    local EPOCHS_PER_MS = 1024 -- epochs stay below 2^53 until the year 2248
    local last, last_epoch, written = redis.call('XREVRANGE', journal, '+', '-', 'COUNT', 1)[1], 0, 0
    if last then
      last_epoch = tonumber(string.match(last[1], '^%d+'))
      written = (whole(last[2][6], 0, MAX_MS) or 0) + #(last[2][12] or '') + ENTRY_BYTES
    end
    local drawn = redis.sha1hex(journal .. (who or '') .. book.entries[1].groups)
    local fresh = book.now * EPOCHS_PER_MS + tonumber(string.sub(drawn, 1, 8), 16) % EPOCHS_PER_MS
    book.epoch = math.max(fresh, (book.epoch or 0) + 1, last_epoch + 1)
    redis.call('HSET', meta, 'journal_epoch', text(book.epoch))
    counted.entries, counted.events, counted.written = 0, 0, written
  end

  local function add_entry(counted, entry, who)
    local reply = redis.pcall('XADD', journal, text(book.epoch) .. '-' .. text(counted.entries),
      'n', text(counted.events), 'k', text(entry.number), 'b', text(counted.written), 't', text(book.now),
      'w', who, 'e1', entry.groups)
    if type(reply) == 'table' then return false end
    counted.entries, counted.events = counted.entries + 1, counted.events + entry.number
    counted.written = counted.written + #entry.groups + ENTRY_BYTES
    return true
  end

  -- Drop the oldest entries until the rest fits the cap; if there are many, only a part of them per call.
  local function trim_journal(counted)
    local TRIM_AT_ONCE, OLD_AT_ONCE = 1000, 32
    local enough = counted.written - book.cap -- at least so many bytes stand before the first entry to keep
    if enough <= 0 then return end
    local before, epoch, low, id = entry_from('-')
    for _ = 1, OLD_AT_ONCE do
      if not id or before and before >= enough then return end
      if before and epoch == book.epoch then break end
      redis.call('XDEL', journal, id)
      before, epoch, low, id = entry_from('-')
    end
    if epoch ~= book.epoch then return end
    local high, prefix = math.min(low + TRIM_AT_ONCE, counted.entries), text(book.epoch) .. '-'
    while low < high do
      local middle = math.floor((low + high) / 2)
      if (entry_from(prefix .. text(middle)) or counted.written) >= enough then high = middle else low = middle + 1 end
    end
    redis.call('XTRIM', journal, 'MINID', prefix .. text(high))
  end

  local function write_entries(who)
    local found = redis.call('HMGET', stats, 'journal_entries', 'journal_events', 'journal_written')
    local counted = {
      entries = whole(found[1], 0, MAX_MS), events = whole(found[2], 0, MAX_MS), written = whole(found[3], 0, MAX_MS),
    }
    if not (book.epoch and counted.entries and counted.events and counted.written) then begin_epoch(counted) end
    local first, left, degraded = counted.entries, book.events, 0
    for _, entry in ipairs(book.entries) do
      if not add_entry(counted, entry, who) then
        begin_epoch(counted)
        first = 0
        if not add_entry(counted, entry, who) then degraded = 1 break end
      end
      left = left - entry.number
    end
    -- Events that were shed or could not be written are counted as well.
    redis.call('HSET', stats, 'journal_entries', text(counted.entries), 'journal_events', text(counted.events + left),
      'journal_written', text(counted.written))
    if math.floor(first / TRIM_EVERY) ~= math.floor(counted.entries / TRIM_EVERY) then trim_journal(counted) end
    return degraded
  end

  local done, degraded = pcall(write_entries, string.sub(who or '', 1, 128))
  return done and degraded or 1
end
