-- The stream of the journal: writes recorded events as entries, numbered and capped in bytes. It uses nothing of other files,
-- as the short ways (see lib/lone_journal.lua) come first in their scripts.

-- Write the events of `book`: `events` of them, those that are not shed in `entries`, each with its `number` and `groups`. It
-- also has `now`, the keys `journal`, `meta` and `stats`, and the journal's `epoch` and `cap` if they are known. The change
-- itself is done by then, so this must not fail the call: returns 1 (degraded) if the journal could not be written, else 0.
local function write_entries(book, caller)
  local ENTRY_BYTES, TRIM_EVERY, MAX_EXACT = 64, 16, 9007199254740992 -- an entry's own size without its groups, approximately
  local journal, meta, stats = book.journal, book.meta, book.stats

  local function counter(value)
    local number = tonumber(value)
    return number and number >= 0 and number <= MAX_EXACT and number % 1 == 0 and number or nil
  end

  local function digits(number) return string.format('%.0f', number) end

  -- The bytes before the first entry from `id` on, its epoch and its number; nil without such an entry.
  local function entry_from(id)
    local entry = redis.call('XRANGE', journal, id, '+', 'COUNT', 1)[1]
    if not entry then return nil end
    local epoch, number = string.match(entry[1], '^(%d+)%-(%d+)$')
    return counter(entry[2][6]), tonumber(epoch), tonumber(number), entry[1]
  end

  -- Begin a new epoch, later than all in the stream: the counters are new or were lost. Its last bits are drawn from what
  -- is written (message ids are random): a journal that was removed or rolled back never has the same epoch again, whatever
  -- the clock says. Where all events are shed there is no text to draw from but who made the call. The count of bytes
  -- continues from the stream's.
  local function begin_epoch(counted)
    local EPOCHS_PER_MS = 1024 -- epochs stay below 2^53 until the year 2248
    local last, last_epoch, written = redis.call('XREVRANGE', journal, '+', '-', 'COUNT', 1)[1], 0, 0
    if last then
      last_epoch = tonumber(string.match(last[1], '^%d+'))
      written = (counter(last[2][6]) or 0) + #(last[2][12] or '') + ENTRY_BYTES
    end
    local entry = book.entries[1]
    local drawn = redis.sha1hex(journal .. caller .. (entry and entry.groups or ''))
    local fresh = book.now * EPOCHS_PER_MS + tonumber(string.sub(drawn, 1, 8), 16) % EPOCHS_PER_MS
    book.epoch = math.max(fresh, (book.epoch or 0) + 1, last_epoch + 1)
    redis.call('HSET', meta, 'journal_epoch', digits(book.epoch))
    counted.entries, counted.events, counted.written = 0, 0, written
  end

  local function add_entry(counted, entry)
    local id = digits(book.epoch) .. '-' .. digits(counted.entries)
    local reply = redis.pcall('XADD', journal, id, 'n', counted.events, 'k', entry.number, 'b', counted.written, 't', book.now,
      'w', caller, 'e1', entry.groups)
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
    local high, prefix = math.min(low + TRIM_AT_ONCE, counted.entries), digits(book.epoch) .. '-'
    while low < high do
      local middle = math.floor((low + high) / 2)
      if (entry_from(prefix .. digits(middle)) or counted.written) >= enough then high = middle else low = middle + 1 end
    end
    redis.call('XTRIM', journal, 'MINID', prefix .. digits(high))
  end

  local function write()
    local found = redis.call('HMGET', stats, 'journal_entries', 'journal_events', 'journal_written')
    local counted = { entries = counter(found[1]), events = counter(found[2]), written = counter(found[3]) }
    if not (book.epoch and counted.entries and counted.events and counted.written) then begin_epoch(counted) end
    local first, left, degraded = counted.entries, book.events, 0
    for _, entry in ipairs(book.entries) do
      if not add_entry(counted, entry) then
        begin_epoch(counted)
        first = 0
        if not add_entry(counted, entry) then degraded = 1 break end
      end
      left = left - entry.number
    end
    -- Events that were shed or could not be written are counted as well.
    redis.call('HSET', stats, 'journal_entries', counted.entries, 'journal_events', counted.events + left,
      'journal_written', counted.written)
    if math.floor(first / TRIM_EVERY) ~= math.floor(counted.entries / TRIM_EVERY) then trim_journal(counted) end
    return degraded
  end

  caller = string.sub(caller or '', 1, 128)
  local done, degraded = pcall(write)
  return done and degraded or 1
end
