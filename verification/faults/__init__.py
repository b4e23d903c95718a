"""Faults on purpose: real servers and processes, real kills, and an account kept outside of Redis.

    python -m verification.faults --faults commit
    python -m verification.faults --faults F1,F21 --seconds 30 --seed 7
    python -m verification.faults --faults all --json report.json
    python -m verification.faults --mutations
    python -m verification.faults --soak --seconds 600

`rows.py` lists the faults; `row.py` says what a row is, `playing.py` plays one.
"""
