"""The server: its URL, connections, scripts and errors, and the embedded store."""
