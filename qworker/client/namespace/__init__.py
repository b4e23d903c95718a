"""What a namespace holds besides messages: the list of queues, workers, owners, users, paused tasks, audit trail."""
