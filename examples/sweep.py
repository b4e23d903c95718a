"""A scheduled sweep: every minute find old files, and send one message for each.

    export QWORKER_URL=embedded: QWORKER_NAMESPACE=sweep SWEEP=/tmp/scratch
    qworker run examples/sweep.py           removes files in $SWEEP that are older than a day

The schedule is stored in Redis, and any number of reapers fire it once per minute. The sweep only finds and sends;
removing is a separate task, so a file that cannot be removed is one dead letter, and does not fail the sweep.
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
    """Remove a file, if it is still too old."""
    file = Path(path)
    try:
        age_s = time.time() - file.stat().st_mtime
    except FileNotFoundError:
        raise Discard("it is already gone") from None
    if age_s < TOO_OLD_S:
        raise Discard("it was touched meanwhile")
    file.unlink()


@app.schedule(every("1m", missed="skip"))
@app.task(queue="sweeps", ttl="1m", at_most_once=True)
def sweep() -> None:
    """Send a removal for each old file; with the path as unique key, only one waits per file."""
    for entry in os.scandir(os.environ["SWEEP"]):
        if entry.is_file() and time.time() - entry.stat().st_mtime > TOO_OLD_S:
            remove.options(unique=entry.path[-256:]).send(entry.path)
