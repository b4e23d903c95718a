"""Commands as values, their executors, and queues."""
