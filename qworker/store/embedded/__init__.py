"""The embedded store: a real server in a data directory, started on demand."""
