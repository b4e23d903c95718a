"""Runs the zoo: real workers over all rows, and for each row all that can be seen of it from outside."""

from __future__ import annotations

import json
import re
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from qworker.errors import QworkerError
from tests.consumer.driving import DEADLINE_S, history_of, until
from tests.consumer.workers import Lab, Worker
from tests.consumer.zoo import page
from tests.consumer.zoo.handlers import ROWS
from tests.consumer.zoo.table import Refused, Row

#: One process runs all of them: three workers visit the zoo together, once.
pytestmark = pytest.mark.xdist_group("zoo")

_SAMPLE = re.compile(r'qworker_handled_total\{outcome="(\w+)",queue="\w+",task="(\w+)"\} (\S+)')


@dataclass(frozen=True)
class Visit:
    """What was seen of all rows of one worker."""

    counted: dict[str, dict[str, int]]
    measured: dict[str, dict[str, int]]
    dead_letters: dict[str, list[Any]]
    logged: dict[str, list[str]]
    noted: dict[str, list[Any]]
    children: tuple[list[int], list[int]]


#: A worker each: its flags, and the rows that it runs.
CAGES = {
    "inline": (
        ("--concurrency", "1"),
        [r for r in ROWS.rows.values() if not (r.is_async or r.ends_child or r.only == "threads")],
    ),
    "threads": (
        ("--concurrency", "4"),
        [r for r in ROWS.rows.values() if not (r.ends_child or r.only == "inline")],
    ),
    "wild": (("--procs", "2"), [r for r in ROWS.rows.values() if r.ends_child]),
}
SEEN = [
    pytest.param(
        cage,
        each.name,
        marks=pytest.mark.nightly("test_a_row_of_the_zoo") if cage == "inline" else (),
    )
    for cage, (_, rows) in CAGES.items()
    for each in rows
]


@pytest.fixture(scope="module")
def visits(
    store_url: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, Visit]]:
    """Let the workers of all tests that are run work at once, and look at what became of their rows."""
    cages = {
        item.callspec.params["cage"]
        for item in request.session.items
        if item.path == request.path and "cage" in getattr(item, "fixturenames", ())
    }
    labs = {cage: _enter(store_url, tmp_path_factory.mktemp(cage), cage) for cage in cages}
    try:
        yield {cage: _look(lab, worker, CAGES[cage][1]) for cage, (lab, worker) in labs.items()}
    finally:
        for lab, _ in labs.values():
            lab.close()


def _enter(url: str, directory: Path, cage: str) -> tuple[Lab, Worker]:
    flags, rows = CAGES[cage]
    lab = Lab(url, f"zoo-{cage}-{directory.parent.name}".lower()[:60], directory)
    for row in rows:
        for call in row.calls:
            lab.send(row.name, *call, queue=row.name)
    worker = lab.start(
        # By weight: a strict order would starve some of a hundred queues on a busy machine.
        "--weights",
        ",".join(f"{row.name}=1" for row in rows),
        "--queues",
        ",".join(row.name for row in rows),
        *flags,
        spec="tests.consumer.zoo.handlers",
        environ={"ZOO_NAMESPACE": lab.namespace, "ZOO_HISTORY": str(lab.history)},
    )
    return lab, worker


def _look(lab: Lab, worker: Worker, rows: list[Row]) -> Visit:
    until(lambda: worker.children() and worker.events("child_started"))
    before = worker.children()

    def over() -> bool:
        return all(_counted(lab, row) == row.end.counted for row in rows)

    with suppress(AssertionError):  # each row tells of itself
        until(over, DEADLINE_S, every_s=0.05)
    until(lambda: worker.events("metrics_served"))
    port = worker.events("metrics_served")[0]["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        samples = _SAMPLE.findall(answer.read().decode())
    measured: dict[str, dict[str, int]] = defaultdict(dict)
    for outcome, task, number in samples:
        if float(number):
            measured[task][outcome] = int(float(number))
    after = worker.children()
    worker.stop()
    logged: dict[str, list[str]] = defaultdict(list)
    for event in worker.events():
        if event["event"].startswith("worker_"):
            continue  # it names all tasks
        for task in (event.get("task"), *event.get("tasks", ())):
            if task:
                logged[task].append(event["event"])
    noted: dict[str, list[Any]] = defaultdict(list)
    for line in lab.history.read_text().splitlines():
        name, *words = json.loads(line)
        noted[name] += words
    return Visit(
        {row.name: _counted(lab, row) for row in rows},
        measured,
        {row.name: list(lab.queue(row.name).dead()) for row in rows},
        logged,
        noted,
        (before, after),
    )


def _counted(lab: Lab, row: Row) -> dict[str, int]:
    # Gaps are stalls of this machine, seen by the reaper. Released are messages that a child had fetched and that
    # waited for a second behind a slow row, and those of a receive whose reply came late: they are delivered again.
    counts = history_of(lab.queue(row.name)).items()
    return {name: number for name, number in counts if name not in ("sent", "gaps", "released")}


@pytest.mark.slow
@pytest.mark.parametrize(("cage", "name"), SEEN)
def test_a_row_of_the_zoo(visits: dict[str, Visit], cage: str, name: str) -> None:
    """A handler's message ends as its row says: in counters, metrics, dead letters, the log, and by its own notes."""
    visit, row = visits[cage], ROWS.rows[name]
    end = row.end
    assert visit.counted[name] == end.counted
    assert Counter(visit.noted[name]) == Counter(end.noted)
    assert visit.measured.get(name, {}) == end.measured
    assert tuple(visit.logged.get(name, ())) == end.logged
    dead_letters = visit.dead_letters[name]
    if end.dead_letter is None:
        assert dead_letters == []
        return
    (dead_letter,) = dead_letters
    assert (dead_letter.reason, dead_letter.error_class) == (end.reason, end.dead_letter[0])
    assert end.dead_letter[1] in dead_letter.error


@pytest.mark.slow
@pytest.mark.parametrize(
    "cage",
    [
        pytest.param("inline", marks=pytest.mark.nightly("test_the_zoo_keeps_its_child")),
        "threads",
    ],
)
def test_the_zoo_keeps_its_child(visits: dict[str, Visit], cage: str) -> None:
    """All rows but those that end their process run in one and the same child."""
    before, after = visits[cage].children
    assert before == after
    assert len(before) == 1


@pytest.mark.parametrize("each", ROWS.refused, ids=lambda row: row.does)
def test_what_cannot_be_a_task_is_refused_when_it_is_declared(each: Refused) -> None:
    """A function of a kind that could never run is refused with one clear error, and nothing is registered."""
    app = QWorker("refused")
    with pytest.raises(QworkerError) as raised:
        each.make(app)
    assert each.words in str(raised.value)
    assert app.tasks == {}
    assert app.schedules == {}


def test_the_page_has_the_rows_of_the_zoo() -> None:
    """The table of docs/guides/handlers.md is what these rows say."""
    assert page.PAGE.read_text("utf-8") == page.written(), "run python -m tests.consumer.zoo.page"
