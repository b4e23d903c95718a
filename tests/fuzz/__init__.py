"""Input that was not thought of: generated, the same at each run, or fresh for as long as one likes.

pytest tests/fuzz                          # the same examples each time
QWORKER_FUZZ_SECONDS=60 pytest tests/fuzz  # fresh ones, for a minute per property

Hypothesis alone: atheris follows the coverage of Python, and what reads messages is C (msgspec, hiredis, re) and Lua.
"""
