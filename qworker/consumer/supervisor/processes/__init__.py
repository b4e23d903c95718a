"""Children as processes: starts, restarts, counts, and leaks."""
