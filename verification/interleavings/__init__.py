"""Every order of calls, losses, expiries and crashes in small worlds, on a real server; see README.md above."""
