"""Faults on purpose: real servers and processes, real kills, and an account kept outside of Redis.

    python -m tests.faults --faults commit
    python -m tests.faults --faults F1,F21 --seconds 30 --seed 7
    python -m tests.faults --faults all --json report.json
    python -m tests.faults --mutations
    python -m tests.faults --soak --seconds 600

`rows.py` lists the faults; `row.py` says what a row is, `playing.py` plays one.
"""
