"""Communication between a worker and its operators: requests, paused tasks, its description in Redis."""
