"""Apps and tasks: what users declare, and what it means to send a call."""
