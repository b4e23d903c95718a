#!lua
-- feed.lua: append to the feed of a message: progress, or parts of its result, while it runs. Notifies its readers.
-- ROLES      consumer
-- KEYS[1]    feed STREAM      expires; `<ms>-<n>` → v, see docs/protocol.md
-- ARGV[1]    keep ms          1-2592000000: how long it is kept after the last append
-- ARGV[2]…   values           1-100, each up to 17 KiB
-- Returns {'OK', id per value} or {'BROKEN', key, type} {'ARG', name}. A full server refuses it before anything is written.
-- The 1,000 newest entries stay.
-- O(k): k values.
--- include lib/checks.lua

local MAX_KEEP_MS, MAX_VALUE, ENTRIES = 2592000000, 17408, 1000
local feed, keep_ms = KEYS[1], whole(ARGV[1], 1, MAX_KEEP_MS)
local refused = broken({ feed, 'stream' })
if refused then return refused end
if not keep_ms then return { 'ARG', 'keep ms' } end
if #ARGV < 2 or #ARGV > 101 then return { 'ARG', 'values' } end
for i = 2, #ARGV do
  if ARGV[i] == '' or #ARGV[i] > MAX_VALUE then return { 'ARG', 'value' } end
end
local reply = { 'OK' }
for i = 2, #ARGV do reply[i] = redis.call('XADD', feed, 'MAXLEN', ENTRIES, '*', 'v', ARGV[i]) end
redis.call('PEXPIRE', feed, ARGV[1])
redis.pcall('SPUBLISH', feed, '')
return reply
