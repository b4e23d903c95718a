"""Manage one queue: its attributes, shards and journal readers; empty it and remove it."""
