"""Checks Redis against the data model while queues are in use, and repairs it: `qworker fsck`."""
