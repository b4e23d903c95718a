"""A scheduled sweep: every minute look for what is too old, and send one message for each find.

    export QWORKER_URL=embedded: QWORKER_NAMESPACE=sweep SWEEP=/tmp/scratch
    qworker run examples/sweep.py           removes files in $SWEEP that nobody has touched for a day

The schedule stands in Redis and is fired by whoever reaps, once per minute however many do. The sweep only looks and
sends; removing is a task of its own, so that one file that cannot be removed is one dead letter, and not the sweep's.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from qworker import Discard, QWorker, Retry, every

app = QWorker("sweep")

TOO_OLD_S = 24 * 3600.0


@app.task(queue="removals", retry=Retry.exponential("10s", cap="10m"), max_receives=5)
def remove(path: str) -> None:
    """Remove a file, if it still is too old."""
    file = Path(path)
    try:
        age_s = time.time() - file.stat().st_mtime
    except FileNotFoundError:
        raise Discard("it is gone already") from None
    if age_s < TOO_OLD_S:
        raise Discard("somebody has touched it meanwhile")
    file.unlink()


@app.schedule(every("1m", missed="skip"))
@app.task(queue="sweeps", ttl="1m", at_most_once=True)
def sweep() -> None:
    """Send a removal for each old file; the path as unique key keeps a second one out while the first one waits."""
    for entry in os.scandir(os.environ["SWEEP"]):
        if entry.is_file() and time.time() - entry.stat().st_mtime > TOO_OLD_S:
            remove.options(unique=entry.path[-256:]).send(entry.path)
