-- What a short way writes to a journal: the same events as lib/journal.lua records, in the same groups, if no message needs to
-- be read for that.

-- Complete a `book` that has the keys `journal`, `meta` and `stats`. Returns nil for a journal that the long way begins, or
-- that is shed or of another type. Its functions are made here, as a queue without a journal needs none.
local function short_journal(book)
  local MAX_GROUPS, GROUP, ROWS_AT_ONCE, DEFAULT_CAP, MIN_CAP = 16384, '\n\n', 250, 67108864, 1048576
  local meta, journal = book.meta, book.journal
  local found = redis.call('HMGET', meta, 'journal_epoch', 'journal_cap', 'journal_shed')
  local epoch, cap = tonumber(found[1] or 0), tonumber(found[2] or DEFAULT_CAP)
  if found[3] or not epoch or epoch < 1 or epoch % 1 ~= 0 or not cap or cap < MIN_CAP or cap % 1 ~= 0 then
    return nil
  end
  local its_type = redis.call('TYPE', journal).ok
  if its_type ~= 'stream' and its_type ~= 'none' then return nil end
  book.epoch, book.cap, book.events, book.entries = epoch, cap, 0, {}
  local groups, number, bytes = {}, 0, 0

  local function close_entry()
    if number == 0 then return end
    book.entries[#book.entries + 1] = { number = number, groups = groups[2] and table.concat(groups, GROUP) or groups[1] }
    groups, number, bytes = {}, 0, 0
  end

  local function add(group, events)
    if bytes + #group > MAX_GROUPS then close_entry() end
    groups[#groups + 1] = group
    number, bytes, book.events = number + events, bytes + #group + #GROUP, book.events + events
  end

  -- The groups, {text, number of events, …}, of an event of many messages, by their headers; nil if one is too large. Changes
  -- `heads`, as lib/journal.lua does.
  function book.rows(first, heads)
    local rows = {}
    for from = 1, #heads, ROWS_AT_ONCE do
      local to = math.min(from + ROWS_AT_ONCE - 1, #heads)
      heads[from - 1] = first
      local group = table.concat(heads, '\n', from - 1, to)
      if #group > MAX_GROUPS then return nil end
      rows[#rows + 1], rows[#rows + 2] = group, to - from + 1
    end
    return rows
  end

  -- The caller's groups of a lease of which so many acks counted: as they are if all did. See `record_told` of lib/settle.lua.
  function book.acked(told, acked)
    if acked == told.number then
      for i = 1, #told, 2 do add(told[i], told[i + 1]) end
    elseif acked > 0 then
      add(string.format('unsure - - - %d_of_%d -', acked, told.number) .. '\nq1 - ' .. book.stamp .. ' 0 0 0 0', 1)
    end
  end

  -- Write the events, and after them `rows`; returns 1 if that failed, else 0.
  function book.write(rows, caller)
    for i = 1, #rows, 2 do add(rows[i], rows[i + 1]) end
    close_entry()
    return book.events > 0 and write_entries(book, caller) or 0
  end
  return book
end
