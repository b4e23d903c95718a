"""What a screen shows of a namespace while it runs: sampled by one thread, with the last hour in memory.

For `qworker web` and `qworker top`.
"""
