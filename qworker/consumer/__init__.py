"""The consumer framework: tasks, the child that runs them, and the supervisor that watches children."""
