"""Shared memory between a child and its supervisor: running handlers, their outcomes, and requests."""
