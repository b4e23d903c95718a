"""Whole workers under faults: real processes, real kills, a history kept outside of Redis."""
