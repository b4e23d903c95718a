"""The faults that every commit goes through, each for a few seconds: nothing is lost, whatever happens.

`make test` plays a few of them: a child, then the server is killed, and replies of receives are lost.
Bounds on times are for runs on a quiet machine (`python -m verification.faults`); here they are stretched.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.consumer.forkserver import can_fork
from verification.faults.playing import play
from verification.faults.row import Row
from verification.faults.rows import chosen

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PATIENCE = 20.0
BY_DAY = ("F1", "F5", "F21a")
ROWS = [
    pytest.param(
        row,
        marks=() if row.name in BY_DAY else pytest.mark.nightly("test_nothing_is_lost"),
        id=row.name,
    )
    for row in chosen("commit")
]


@pytest.mark.parametrize("row", ROWS)
def test_nothing_is_lost(row: Row) -> None:
    """Nothing lost, unexpected, acked twice or started after its ack; drained, and in order."""
    seed = int(os.environ.get("QWORKER_FAULTS_SEED", random.randrange(10**6)))
    played = play(
        row, seed=seed, seconds=row.commit_s, patience=PATIENCE, small=True, warm=can_fork()
    )
    print(played.document())  # shown by -rP
    assert not played.reason
    assert played.problems == [], f"seed {seed}"
    assert played.account.acked > 0
