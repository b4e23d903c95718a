"""What a child holds: leases on its board, the messages in them, and how many it receives at a time."""
