"""Runs: workflows whose steps, loops and gathers are recorded, so that another worker can resume them."""
