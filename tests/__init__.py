"""The tests. Whoever imports them keeps their bytecode, even if the environment forbids it.

Most of a collection rewrites asserts, and pytest rewrites Hypothesis too: each process would compile all of it anew.
"""

import sys

sys.dont_write_bytecode = False
