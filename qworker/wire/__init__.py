"""What stands in Redis: keys, names, ids, envelopes and bodies."""
