"""The live state of a namespace for screens: sampled by one thread, with the last hour in memory.

For `qworker web` and `qworker top`.
"""
