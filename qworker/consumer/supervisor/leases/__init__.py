"""Leases of children: kept while a child runs, and settled from its board when it has died."""
