"""Queues of several shards."""
