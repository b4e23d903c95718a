"""Benchmarks that anyone can run: us, the raw floor and (where named) peers, interleaved in one run.

    python -m benchmarks --help

See docs/benchmarks.md.
"""
