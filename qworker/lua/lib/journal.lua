-- The journal: the outcomes of messages, one stream entry per call (more if its groups exceed 16 KiB).
--   journal STREAM   `<epoch>-<entry number>` → n number of its first event · k events · b bytes of all entries before it ·
--                    t now ms · w who made the call · e1 groups of events, an empty line between two
-- A group is a line with what its events have in common, `<event> <delivered_ms> <times> <task> <reason> <error class>`,
-- `-` where a field is unknown; and for each event the header of its message, `q1 …`, as it stood before the event.
-- See docs/protocol.md. Fields that the messages of a call share are stored once.
-- Numbers come from counters in `stats` and are dense within an epoch, so a missing entry shows as a gap.

local MAX_GROUPS = 16384 -- bytes of the groups of one entry
local ROW, GROUP = '\nq1 ', '\n\n' -- what stands before each header, and between two groups
local ROWS_AT_ONCE = 250
local HEADER_SHAPE = '^q1 ([%w._-]+ %d+ %d+ %d+ %d+ %d+[^\n]*)\n'

-- `open_journal` adds the functions of the book, if the journal is on: a server creates the functions of a script again at
-- each call, and most queues have no journal. `rows` is the group being filled: its first line at 0, then its headers.
local book = {
  on = false, all = false, shed = false, events = 0,
  entries = {}, groups = {}, number = 0, bytes = 0, rows = {}, rows_bytes = 0,
}

local function open_book()
  local function close_entry()
    if book.number == 0 then return end
    book.entries[#book.entries + 1] = { number = book.number, groups = table.concat(book.groups, GROUP) }
    book.groups, book.number, book.bytes = {}, 0, 0
  end

  local function put_group(group, number)
    if book.bytes + #group > MAX_GROUPS then close_entry() end
    book.groups[#book.groups + 1] = group
    book.number, book.bytes = book.number + number, book.bytes + #group + #GROUP
  end

  local function close_rows()
    local rows = book.rows
    if #rows == 0 then return end
    book.rows, book.rows_bytes = {}, 0
    put_group(table.concat(rows, ROW, 0), #rows)
  end

  function book.close()
    close_rows()
    close_entry()
  end

  -- Add a group of `number` events, at most 16 KiB. While the journal is shed they are only counted.
  function book.add_group(group, number)
    book.events = book.events + number
    if book.shed then return end
    close_rows()
    put_group(group, number)
  end

  -- Add one event to the group that begins with `first`, which is the last one or a new one.
  function book.add_row(first, header)
    book.events = book.events + 1
    if book.shed then return end
    if first ~= book.rows[0] or book.rows_bytes + #header + #ROW > MAX_GROUPS then
      close_rows()
      book.rows, book.rows_bytes = { [0] = first }, #first
    end
    header = string.sub(header, 1, MAX_GROUPS - #first - #ROW)
    book.rows[#book.rows + 1] = header
    book.rows_bytes = book.rows_bytes + #header + #ROW
  end

  -- Add the same event of many messages, given their headers; this is the hot path of a journal of everything. Changes
  -- `headers`: `first` takes the place before those of each group, so that the group is made in one piece.
  local function add_rows(first, headers)
    if book.shed then
      book.events = book.events + #headers
      return
    end
    for from = 1, #headers, ROWS_AT_ONCE do
      local to = math.min(from + ROWS_AT_ONCE - 1, #headers)
      headers[from - 1] = first
      local group = table.concat(headers, ROW, from - 1, to)
      if #group <= MAX_GROUPS then
        book.add_group(group, to - from + 1)
      else
        for i = from, to do book.add_row(first, headers[i]) end
      end
    end
  end

  -- The header of an item in the journal. A plain one is named after its delivery, if it had one.
  function book.header_of(item, lease, index)
    local header = string.match(item, HEADER_SHAPE)
    if header then return header end
    local id = lease and string.find(item, '^[{[]') and lease .. '.' .. index or '-'
    return id .. ' ' .. text(book.now) .. ' 0 0 0 0'
  end

  local function word(value)
    if not value or value == '' then return '-' end
    return (string.gsub(string.sub(value, 1, 200), '[^%w_.:-]', '_'))
  end

  function book.record(event, item, about)
    if book.shed then return book.add_row() end
    about = about or {}
    local times = about.times and about.times ~= '' and about.times or '- - -'
    local first = event .. ' ' .. times .. ' ' .. word(about.reason) .. ' ' .. word(about.class)
    book.add_row(first, book.header_of(item, about.lease, about.index))
  end

  -- `heads` are headers, or whole items if these are plain: `plain` says whether any is. `reasons`, where given: what each
  -- has waited for, false for none.
  function book.record_delivered(heads, lease, plain, reasons)
    for i = 1, plain and #heads or 0 do
      if string.find(heads[i], '^[{[]') then heads[i] = book.header_of(heads[i], lease, #heads > 1 and i or 0) end
    end
    if not reasons then return add_rows('delivered ' .. text(book.now) .. ' - - - -', heads) end
    for i, head in ipairs(heads) do
      book.add_row('delivered ' .. text(book.now) .. ' - - ' .. (reasons[i] or '-') .. ' -', head)
    end
  end

  function book.record_sent(items)
    local heads = {}
    for i, item in ipairs(items) do
      local stop = string.find(item, '\n', 1, true)
      heads[i] = stop and string.sub(item, 4, stop - 1) or book.header_of(item)
    end
    add_rows('sent - - - - -', heads)
  end

  -- A group of calls begins or is decided: of no message. What follows its time tells it from one that had its id before.
  --   group_begun     `<group id>:<made ms>:<members>:<policy>:<id of the callback, or of the run that waits>`
  --   group_decided   `<group id>:<made ms>:<outcome>:<id of the callback, or of the run that continues; or ->`
  --     outcome: ok, failed, cancelled, abandoned (by an operator), ended (its run had), lost (its state was)
  function book.record_group(event, id, made, ...)
    book.add_row(event .. ' - - - ' .. table.concat({ id, made or '-', ... }, ':') .. ' -', book.header_of(''))
  end

  -- A step of a run got its value: `<name>=<digest>`. No two names are written alike; the digest is 64 bits of SHA-1.
  function book.record_step(header, name, value)
    name = string.gsub(name, '[^%w_.:#!~*%[%]-]', function(char) return string.format('%%%02X', string.byte(char)) end)
    book.add_row('step - - - ' .. name .. '=' .. string.sub(redis.sha1hex(value), 1, 16) .. ' -', header)
  end
end

-- `attributes`: mode, cap, epoch and shed as meta has them. Before this nothing is recorded.
local function open_journal(attributes, now)
  local DEFAULT_CAP, MIN_CAP, MAX_CAP = 67108864, 1048576, 1099511627776
  book.all = attributes.mode == 'all'
  book.on = book.all or attributes.mode == 'outcomes'
  if not book.on then return end
  book.shed = attributes.shed == '1'
  book.cap = whole(attributes.cap, MIN_CAP, MAX_CAP) or DEFAULT_CAP
  book.epoch = whole(attributes.epoch, 1, MAX_MS)
  book.now = now
  book.journal, book.meta, book.stats = journal, meta, stats
  open_book()
end

-- Record one event of an item. `about` may have: lease and index (for plain items), reason, class, and times, which
-- are `<delivered_ms> <times> <task>`.
local function record(event, item, about)
  if book.on then book.record(event, item, about) end
end

-- Write what was recorded, see lib/journal_entries.lua; returns 1 (degraded) if that failed, else 0.
local function write_journal(caller)
  if book.events == 0 then return 0 end
  book.close()
  return write_entries(book, caller)
end
