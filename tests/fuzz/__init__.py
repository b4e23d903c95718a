"""Input that nobody thought of: generated, the same at each run, or fresh for as long as one likes.

pytest tests/fuzz                          # the same examples each time
QWORKER_FUZZ_SECONDS=60 pytest tests/fuzz  # fresh ones, for a minute per property
"""
