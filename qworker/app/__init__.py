"""Apps and tasks: what users declare, and how calls are sent."""
