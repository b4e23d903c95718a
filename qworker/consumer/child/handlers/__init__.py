"""Runs handlers: inline, in threads, on an event loop or in batches, and says how each message ends."""
