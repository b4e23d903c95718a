"""Results: start tasks, wait for what they return, and handle those that fail.

    export QWORKER_URL=embedded: QWORKER_NAMESPACE=reports
    qworker run examples/reports.py &                       counts words
    python examples/reports.py README.md nowhere.txt        waits for the reports and prints them

The result of a report is small and wanted at once: that is what results are for. A report that you need tomorrow goes
to a database, in the handler.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from qworker import QWorker, ResultTimeoutError, Retry, TaskFailedError

app = QWorker("reports")


@dataclass
class Report:
    """The words of one file."""

    path: str
    words: int
    most: list[tuple[str, int]]


@app.task(queue="reports", result="10m", retry=Retry.exponential("1s", give_up_on=(OSError,)))
def report(path: str) -> Report:
    """Count the words of a file. A file that cannot be read is a dead letter at once."""
    words = Path(path).read_text("utf-8").split()
    return Report(path, len(words), Counter(words).most_common(3))


def reports(paths: list[str], timeout: str = "1m") -> list[str]:
    """Report on all files at the same time; a line for each, in order."""
    handles = [(path, report.start(path)) for path in paths]
    lines = []
    for path, handle in handles:
        try:
            done = handle.result(timeout)  # a Report
            lines.append(f"{path}: {done.words} words, most of them {done.most[0][0]!r}")
        except TaskFailedError as error:
            lines.append(f"{path}: failed, {error.error} ({error.reason})")
        except ResultTimeoutError:
            lines.append(f"{path}: not yet; qworker result show {handle.queue} {handle.id}")
    return lines


if __name__ == "__main__":
    print("\n".join(reports(sys.argv[1:])))
