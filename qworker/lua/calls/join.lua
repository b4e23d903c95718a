#!lua
-- join.lua: begin a group of calls: keep what follows it, and put its members into outboxes, some with each call.
-- ROLES      producer, consumer, daemon, operator
-- KEYS[1]    meta HASH
-- KEYS[2]    stats HASH
-- KEYS[3]    producers HASH   lane → last number, ms
-- KEYS[4]    join HASH        see below
-- KEYS[5]    joins ZSET       group id → when it began, ms: groups of calls that have not ended
-- KEYS[6-7]  run HASH, runs ZSET   if a run follows the group, see step.lua: `@joins` are the ids of groups that end with it
-- KEYS[8]    lease HASH       may be left out: of the delivery of that run, which must hold it
-- ARGV[1]    now ms           '' (tests: see clock.lua)
-- ARGV[2-3]  lane, number     of the outbox that the call is relayed from, or of the caller: a call that is repeated does nothing
-- ARGV[4]    spec             MessagePack, see docs/protocol.md: a map of
--   id, size       of the group; its number of members, 1-10000
--   policy         all, successes or first
--   first          number of the first member of this call, 0 in the first one
--   start, keep    may be left out: what it was started with, kept for this many ms after the end: it is started once
--   then | run     {priority, delay ms, ttl ms, head, tail} of the callback, as of a push of lib/effects.lua, whose id is that of
--                  the group | {message id, signal}: a run of this queue that gets this signal
--   queues         may be left out: names of other queues in which messages of the group may be, at most 1,000
--   rest           may be left out: the first success cancels the other members, none of which is a group; a map of queue →
--                  the later steps of members that are chains, ` <member>-<step> …`
--   members        a list of {queue, priority, delay ms, ttl ms, head, tail}, or {queue of its callback, id, {specs}} for a group
-- ARGV[5]    index            of the run in that lease
-- In join: `0` … → how a member has ended, see gather.lua; @size, @policy, @left (members that it still waits for), @sent (members
-- that are in outboxes), @queues (where their messages may be), @rest (to be cancelled: queue → ` <member> <member>-<step> …`;
-- empty once that was sent), @then or @run, @start, @keep, @made.
-- Returns {'OK', now ms, members sent, by this call or before, the start that counts}, {'GONE'} if the group has ended, {'STALE'}
--   if the lease does not hold the run, {'TAKEN'} if a run has the id that was chosen, or {'BROKEN', key, type} {'ARG', name}. Of two
--   starts of an id the first counts while anything of its group is kept.
-- O(m): m members of the call.
--- include lib/clock.lua
--- include lib/checks.lua
--- include lib/rights.lua

local meta, stats, producers, join, joins, run, runs = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local journal = string.sub(meta, 1, -5) .. 'journal'
--- include lib/journal_entries.lua
--- include lib/journal.lua
--- include lib/journal_mode.lua
--- include lib/outbox.lua
--- include lib/call_specs.lua
local MAX_MEMBERS, MAX_KEEP_MS, POLICIES = 10000, 2592000000, { all = true, successes = true, first = true }
local refused = broken({ meta, 'hash', stats, 'hash', producers, 'hash', joins, 'zset', join, 'hash' })
if refused then return refused end
local now, lane, number = clock(ARGV[1], meta), ARGV[2], whole(ARGV[3], 0, MAX_MS)
if not now or not number or not string.find(lane, '^out%-%x+$') then return { 'ARG', 'header' } end
local read, spec = pcall(cmsgpack.unpack, ARGV[4])
if not read or type(spec) ~= 'table' or type(spec.members) ~= 'table' then return { 'ARG', 'spec' } end

local id, size, first, after, target = spec.id, whole(spec.size, 1, MAX_MEMBERS), whole(spec.first, 0, MAX_MEMBERS), spec['then'], spec.run
if type(id) ~= 'string' or #id > 64 or string.sub(join, -#id - 6) ~= ':join:' .. id then return { 'ARG', 'group id' } end
if not size or not first or first + #spec.members > size or not POLICIES[spec.policy] then return { 'ARG', 'size' } end
if spec.start and (type(spec.start) ~= 'string' or spec.start == '' or #spec.start > 1024 or not whole(spec.keep, 1, MAX_KEEP_MS)) then
  return { 'ARG', 'start' }
end
if target then
  refused = broken({ run, 'hash', runs, 'zset' }) or KEYS[8] and broken({ KEYS[8], 'hash' })
  if refused then return refused end
  if type(target[1]) ~= 'string' or string.sub(run, -#target[1] - 5) ~= ':run:' .. target[1]
    or type(target[2]) ~= 'string' or not string.find(target[2], '^![%w_.][^%s]*$')
    or #target[2] > 128 then
    return { 'ARG', 'run' }
  end
elseif type(after) ~= 'table' or not is_message(unpack(after)) or after[4] ~= 'q1 ' .. id .. ' ' then
  return { 'ARG', 'then' }
end
local queues = queues_named(spec.queues or {})
if not queues then return { 'ARG', 'queues' } end
local wrong = wrong_member(spec.members, queues)
if wrong then return { 'ARG', 'member ' .. wrong } end
if not is_rest(spec.rest, spec.members) then return { 'ARG', 'rest' } end
-- A delivery that was given up begins nothing: its run may have ended. Messages that share the field batch are all held.
local held = not KEYS[8] or redis.call('HEXISTS', KEYS[8], ARGV[5]) == 1 or redis.call('HEXISTS', KEYS[8], 'batch') == 1
if not held then return { 'STALE' } end
local found = redis.call('HMGET', join, '@sent', '@start', '@queues', '@rest', '@over')
local sent, last = tonumber(found[1]), tonumber(string.match(redis.call('HGET', producers, lane) or '', '^%d+'))
local start = spec.start or ''
-- Both would keep their results in one key, and their messages would have one id.
local same_id = string.sub(meta, 1, -5) .. 'run:' .. id
if not sent and spec.start and redis.call('EXISTS', same_id) == 1 then return { 'TAKEN' } end
local is_other = sent and (found[2] or '') ~= start
-- Their ids may be used again: nothing of the earlier group is kept any more, but numbers of lanes are, for days.
local is_again = not sent and first == 0 and (spec.start or target)
-- Decided before all of its members were sent: they would run on.
if spec.rest and sent and found[5] and not is_other then return { 'GONE' } end
if not is_again and last and number <= last or is_other or not sent and first > 0 then
  -- Called before; or another one has this id; or the group has ended.
  if not sent and first > 0 then return { 'GONE' } end
  return { 'OK', text(now), text(sent or size), sent and found[2] or start }
end
local outs, lanes = outbox(''), {}
refused = denied('outboxes', 'XADD', outs .. ':a', '1-0', 'h', '') or denied('groups of calls', 'HSET', join, 'h', '')
refused = refused or not sent and open_journal_of(now)
if refused then return refused end
if not sent then
  sent = 0
  redis.call('HSET', join, '@size', text(size), '@policy', spec.policy, '@left', text(size), '@made', text(now),
    target and '@run' or '@then', cmsgpack.pack(target or after))
  if spec.start then redis.call('HSET', join, '@start', start, '@keep', text(spec.keep)) end
  redis.call('ZADD', joins, text(now), id)
  if target then
    redis.call('ZADD', runs, 'NX', text(now), target[1])
    redis.call('HSET', run, '@joins', (redis.call('HGET', run, '@joins') or '') .. ' ' .. id)
  end
  local follows = target and target[1] or id
  if book.on then book.record_group('group_begun', id, text(now), text(size), spec.policy, follows) end
end
local before = sent
for i = sent - first + 1, #spec.members do
  send_member(spec.members[i], id .. '.' .. text(first + i - 1), now, lanes)
  sent = first + i
end
for destination, lane_and_last in pairs(lanes) do redis.call('HSET', outs, destination, lane_and_last) end
for name in string.gmatch(found[3] or '', '%S+') do queues[name] = true end
local names = {}
for name in pairs(queues) do names[#names + 1] = name end
redis.call('HSET', join, '@sent', text(sent), '@queues', table.concat(names, ' '))
if spec.rest then redis.call('HSET', join, '@rest', with_rest(found[4], spec.rest, spec.members, first, before)) end
redis.call('HSET', producers, lane, text(number) .. ' ' .. text(now))
redis.pcall('HINCRBY', stats, 'followed', sent - before)
write_journal('')
return { 'OK', text(now), text(sent), start }
