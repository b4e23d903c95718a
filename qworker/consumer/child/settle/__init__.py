"""How a child reports what became of messages: acks on the next receive, counts, journal events."""
