"""The process that starts children and watches them: leases, limits, restarts, metrics, operators' requests."""
