-- Outcomes of received messages. In ARGV, from position `at`: the number of leases (their keys
-- stand from KEYS[21] on), and for each lease
--   acks     n, then n indices; or '*' for all that are left in the lease
--   uniques  n, then n × (index, unique key, message id): acks that free a unique key
--   others   n, then n × (kind, index, a, b, c, class, error, times)
--     n nack      a delay ms, b max receives of the task or '', c first received ms or ''
--                                                                 counted; dead at max receives
--     c crashed   b, c as of a nack                               it killed its worker: counted as a
--                                                                 lone timeout, delivered alone from now on
--     r release   a delay ms, b 1 or '', c unknown since ms or '' not counted, to the head; index '*' means
--                                                                 all that are left. With b: its handler had
--                                                                 started, so it counts as received once more. With
--                                                                 c: the worker lacks its task or key, see flag k
--     l limited   a ms 1-86400000, b 2 or ''                      as a release whose handler had started, and no
--                                                                 message of its group, or of the queue if it has none,
--                                                                 is delivered meanwhile. With b: none of its parent
--     s shared    -                                               the worker died, several ran
--     b bury      a reason                                        dead letter
--     p park      a delay ms or '' for ever, b -, c ms to keep a run's state that lacks flag c, or ''
--                 class `~<name>`, error `!<signal>` or ''        a run sleeps, or waits for a signal; not counted.
--                                                                 Its due time is recorded under that name, once
--     d discard   -                                               done, because the handler asked for it
--     k cancel    -                                               ended, because it was cancelled while it ran
--     t acked     a number of effects 1-1000                      an ack with effects, which follow these eight words:
--                                                                 see lib/effects.lua. It frees a unique key by itself
--   acked    n, then n × (number, group): the acks' journal groups, each of `number` events and at most 16 KiB.
--            0: the script reads the items itself, if the journal is on.
-- times describes a delivery for the journal: `<delivered_ms> <times> <task>`, `-` for an unknown value; or ''. For groups
-- and times see docs/protocol.md.

local function read_outcomes(at)
  local KINDS = 'ncrlsbdktp'
  local MAX_OUTCOMES, MAX_TIMES, MAX_LIMITED_MS = 10000, 512, 86400000
  local TIMES = '^[%d-]+ [%w+/=-]+ [%w_.:-]+$'
  local leases = {}
  local number = whole(ARGV[at], 0, 64)
  if not number or #KEYS < FIRST_LEASE + number - 1 then return nil, 'leases' end
  at = at + 1
  for l = 1, number do
    local lease = {
      key = KEYS[FIRST_LEASE + l - 1], all = ARGV[at] == '*', acks = {}, uniques = {}, others = {},
      told = {}, told_number = 0,
    }
    lease.id = lease_id(lease.key)
    local acks = lease.all and 0 or whole(ARGV[at], 0, MAX_OUTCOMES)
    if not lease.id or not acks then return nil, 'acks' end
    for i = 1, acks do lease.acks[i] = ARGV[at + i] end
    at = at + acks + 1
    local uniques = whole(ARGV[at], 0, MAX_OUTCOMES)
    if not uniques then return nil, 'uniques' end
    for i = 0, uniques - 1 do
      lease.uniques[i + 1] = { ARGV[at + i * 3 + 1], ARGV[at + i * 3 + 2], ARGV[at + i * 3 + 3] }
    end
    at = at + uniques * 3 + 1
    local others = whole(ARGV[at], 0, MAX_OUTCOMES)
    if not others then return nil, 'others' end
    at = at + 1
    for i = 1, others do
      local from = at
      local other = {
        kind = ARGV[from], index = ARGV[from + 1], a = ARGV[from + 2], b = ARGV[from + 3],
        c = ARGV[from + 4], class = ARGV[from + 5], words = ARGV[from + 6], times = ARGV[from + 7],
      }
      if not other.times or #other.kind ~= 1 or not string.find(KINDS, other.kind, 1, true) then
        return nil, 'kind'
      end
      if other.kind == 'n' or other.kind == 'r' then
        other.delay_ms = whole(other.a, 0, MAX_MS)
        if not other.delay_ms then return nil, 'delay_ms' end
      end
      if other.kind == 'l' then
        other.delay_ms = whole(other.a, 1, MAX_LIMITED_MS)
        if not other.delay_ms then return nil, 'limit' end
      end
      if other.kind == 'p' then
        other.delay_ms = other.a == '' and MAX_MS or whole(other.a, 0, MAX_MS)
        local known = string.find(other.class, '^~[^%s]+$') and string.find(other.words, '^!?[^%s]*$')
        if not other.delay_ms or not known or #other.class > 128 or #other.words > 128 then return nil, 'park' end
      end
      if other.b ~= '' and not whole(other.b, 1, 999999) then return nil, 'max receives' end
      if other.c ~= '' and not whole(other.c, 0, MAX_MS) then return nil, 'first received' end
      if other.times ~= '' and (#other.times > MAX_TIMES or not string.find(other.times, TIMES)) then return nil, 'times' end
      at = at + 8
      if other.kind == 't' then
        local effects, after = read_effects(at, whole(other.a, 1, MAX_EFFECTS) or 0)
        if not effects or #effects == 0 then return nil, effects and 'effects' or after end
        other.effects, at = effects, after
      end
      lease.others[i] = other
    end
    local groups = whole(ARGV[at], 0, MAX_OUTCOMES)
    if not groups then return nil, 'acked' end
    for i = 1, groups do
      local told, group = whole(ARGV[at + 2 * i - 1], 1, MAX_OUTCOMES), ARGV[at + 2 * i]
      if not told or not group or #group > MAX_GROUPS then return nil, 'acked' end
      lease.told[i] = { number = told, text = group }
      lease.told_number = lease.told_number + told
    end
    at = at + groups * 2 + 1
    leases[l] = lease
  end
  return leases, at
end
