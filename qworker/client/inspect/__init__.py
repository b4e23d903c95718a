"""Inspect queues and messages without receiving them."""
