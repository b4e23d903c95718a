-- The keys of a queue as senders declare them, in this order in KEYS:
--   1 ready LIST of the messages' priority · 2 delayed ZSET · 3 wake LIST · 4 meta HASH · 5 stats HASH
-- then those of the script, and last the journal STREAM.
local ready, delayed, wake, meta, stats, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[#KEYS]
