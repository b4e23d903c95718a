-- The queue gets its first limit: before that what is in flight is counted, a page a call. See lib/groups.lua.

more_of_groups[#more_of_groups + 1] = function(it)
  local states, slots = it.states, it.slots
  -- Of a call: slots that it counts, fields that it looks at, and at a time.
  local COUNTS, SEEN, AT_ONCE = 250, 1000, 10

  -- Returns whether all is counted. Until then `@looking` is a c, the server process, its cursor, which means nothing to
  -- another one, and the time. It lets calls count what they deliver and what they move.
  function it.count_page(now)
    local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
    local started = string.match(it.tags().looking or '', '^c' .. server .. ':(%d+) ')
    local cursor, following, found, taken, number, seen = nil, started or '0', {}, {}, 0, 0
    repeat
      cursor = following
      local page = redis.call('HSCAN', slots, cursor, 'COUNT', AT_ONCE)
      for i = 1, #page[2], 2 do
        local token, value = page[2][i], page[2][i + 1]
        local alone = string.find(token, ':', 1, true)
        local counts = alone and string.byte(value) == 1 or not alone and packed_slots.may_be_uncounted(value)
        if counts and not taken[token] then -- a scan may meet one twice
          taken[token], found[#found + 1], found[#found + 2] = true, token, value
          number = number + (alone and 1 or COUNTS) -- a batch may have as many
        end
      end
      following, seen = page[1], seen + #page[2] / 2
    until following == '0' or number >= COUNTS or seen >= SEEN
    local is_whole = it.count_slots(found, COUNTS) < COUNTS -- else the last of these pages may have more
    if is_whole and following == '0' then
      it.end_looking()
      return true
    end
    redis.call('HSET', states, '@looking', 'c' .. server .. ':' .. (is_whole and following or cursor) .. ' ' .. text(now))
    return false
  end
end
