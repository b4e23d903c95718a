"""The content of a namespace apart from messages: queues, workers, owners, users, paused tasks, audit trail."""
