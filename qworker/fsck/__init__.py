"""Check what stands in Redis against the data model while queues are in use, and repair it: `qworker fsck`."""
