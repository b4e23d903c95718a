"""A group of calls: count the words of many files side by side, then write one summary, once.

    export QWORKER_URL=embedded: QWORKER_NAMESPACE=totals
    qworker run examples/totals.py &                        counts and summarises
    python examples/totals.py README.md nowhere.txt         waits for the summary and prints it
    qworker calls ls                                        what groups wait for meanwhile

A file that cannot be read is a dead letter, and a `Failure` in its place for the summary. With `policy="successes"` the
summary would wait until you have redriven it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from qworker import Failure, QWorker, Retry, group

app = QWorker("totals")


@app.task(queue="files", result="10m", retry=Retry.exponential("1s", give_up_on=(OSError,)))
def count(path: str) -> int:
    """Count the words of a file."""
    return len(Path(path).read_text("utf-8").split())


@app.task(queue="summaries", result="10m")
def summarise(counts: list[int | Failure], paths: list[str]) -> list[str]:
    """Write a line for each file, in order, and one for all of them."""
    lines = [
        f"{path}: {words.error}" if isinstance(words, Failure) else f"{path}: {words} words"
        for path, words in zip(paths, counts, strict=True)
    ]
    total = sum(words for words in counts if not isinstance(words, Failure))
    return [*lines, f"{total} words in all"]


def summary(paths: list[str], timeout: str = "1m") -> list[str]:
    """Count all files, and return the summary."""
    calls = group(count.call(path) for path in paths)
    return calls.then(summarise, paths).start().result(timeout)


if __name__ == "__main__":
    print(*summary(sys.argv[1:]), sep="\n")
