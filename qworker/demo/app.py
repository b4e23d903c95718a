"""The app of the demo, as a user would write it: two tasks for each file, and a batch handler that collects.

index_file ──▶ total      parses a file, and sends what it holds on
check_file                parses it again with the grammar of an old Python: some files are too new, or not UTF-8
"""

from __future__ import annotations

import os
import secrets
from functools import cache
from typing import Final

import msgspec

from qworker import Bury, QWorker, Retry, current
from qworker.demo.results import Results, keys_of
from qworker.demo.summary import FileSummary, check_grammar, summarize

__all__ = [
    "NAMESPACE",
    "QUEUES",
    "RESULTS_VARIABLE",
    "app",
    "check_file",
    "index_file",
    "key_of",
    "total",
]

NAMESPACE: Final = "demo"
#: The queues, in the order in which workers take from them.
QUEUES: Final = ("totals", "files", "checks")
#: The environment variable that gives children the path of the SQLite file with the results.
RESULTS_VARIABLE: Final = "QWORKER_DEMO_RESULTS"

app = QWorker(NAMESPACE)

# Short waits, because you watch a demo; the default is 1 s to 10 min.
_SOON: Final = Retry.exponential("100ms", cap="1s")


@app.task(queue="totals", batch=100, retry=_SOON)
def total(results: list[FileSummary]) -> None:
    """Put what files hold into the index, up to a hundred in one transaction."""
    _results().note(handled=keys_of(results, "total"), summaries=results)


@app.task(queue="files", max_receives=3, retry=_SOON, time_limit="60s")
def index_file(path: str, module: str) -> None:
    """Parse a file and send its classes, functions and imports on."""
    message_id = _message_id()
    key = f"summary-{secrets.token_hex(8)}"
    total.send(summarize(path, module, key))
    _results().note(sent=[key], handled=[(message_id, "index_file", path)])


@app.task(queue="checks", max_receives=3, retry=_SOON, time_limit="60s")
def check_file(path: str, grammar: tuple[int, int] = (3, 7)) -> None:
    """Check that a file is UTF-8 and has no syntax newer than `grammar`."""
    try:
        check_grammar(path, grammar)
    except UnicodeDecodeError as error:
        # A retry would read the same bytes.
        raise Bury(f"{path} is not UTF-8: {error}") from error
    _results().note(handled=[(_message_id(), "check_file", path)])


def _message_id() -> str:
    context = current()
    assert context is not None, "called by a worker"
    return context.message_id


@cache
def _results() -> Results:
    """Open the results, once in each process, when a handler first needs them."""
    return Results(os.environ[RESULTS_VARIABLE])


def key_of(queue: str, message_id: str, body: bytes) -> str:
    """Return the key of a message in the results."""
    if queue != total.queue:
        return message_id
    key: str = msgspec.json.decode(body)["args"][0]["key"]
    return key
