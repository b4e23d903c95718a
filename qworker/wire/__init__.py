"""Formats stored in Redis: keys, names, ids, envelopes and bodies."""
