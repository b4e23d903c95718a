#!lua flags=allow-oom
-- declare.lua: store or remove a limit over several queues, if it is still as the caller has read it.
-- ROLES      operator
-- KEYS[1]    limits HASH      of the namespace, see allot.lua
-- ARGV[1]    parent           the name of the limit
-- ARGV[2]    before           words as the caller read them, '' for none
-- ARGV[3]    words            of the limit; '' removes it
-- Returns {'OK'}, or {'CHANGED'} {'BROKEN', key, type} {'ARG', name}
-- O(1).
--- include lib/checks.lua

local limits, name, before, words = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if not string.find(name, '^[^/=*%c][^/*%c]*/$') or #name > 257 then return { 'ARG', 'name' } end
if not before or not words or words ~= '' and not string.find(words, ' ?v=%d+$') then return { 'ARG', 'words' } end
local refused = broken({ limits, 'hash' })
if refused then return refused end
if (redis.call('HGET', limits, name) or '') ~= before then return { 'CHANGED' } end
if words == '' then redis.call('HDEL', limits, name) else redis.call('HSET', limits, name, words) end
return { 'OK' }
