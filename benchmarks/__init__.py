"""Benchmarks that anyone can run: us, the raw floor and (where named) peers, interleaved in one run.

python -m benchmarks drain [--json FILE] [--messages N] [--rounds N]
"""
