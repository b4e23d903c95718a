"""Redriving and discarding the dead letters that rows name, if they are still dead, at a rate. No JVM."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from qworker.errors import InvalidNameError, InvalidOptionError
from qworker.pipeline.sink.dead_letters import AttemptResult, DeadLetterChanger, add_up
from qworker.pipeline.sink.options import WriteOptions
from qworker.store.url import ServerURL
from tests.topologies.servers import client_of


class Graveyard:
    """A queue with forged dead letters."""

    def __init__(self, url: str, namespace: str, queue: str) -> None:
        self.url, self.namespace, self.queue = url, namespace, queue
        self.base = f"{namespace}:{{{queue}}}:"
        self.redis = client_of(url)

    def bury(self, *ids: str, envelope: str = "q1 {} 1 5 5 0 0\nbody") -> list[str]:
        """Add dead letters of these message ids; returns their entry ids."""
        entries = []
        for message_id in ids:
            fields = {
                "envelope": envelope.format(message_id),
                "reason": "max_receives",
                "class": "",
                "error": "",
                "died_ms": "1",
            }
            entries.append(self.redis.xadd(self.base + "dead", fields).decode())
        return entries

    def change(
        self, rows: list[dict[str, Any]], *, action: str = "redrive", **more: Any
    ) -> AttemptResult:
        """Change what rows name."""
        given = {"namespace": self.namespace, "queue": self.queue, "action": action, **more}
        changer = DeadLetterChanger(ServerURL.parse(self.url), WriteOptions.of(given))
        return changer.change(2, [pa.RecordBatch.from_pylist(rows)])

    def ready(self) -> list[bytes]:
        """The ids in ready, in their order."""
        return [item.split(b" ")[1] for item in self.redis.lrange(self.base + "ready", 0, -1)]

    def dead(self) -> int:
        """How many are dead."""
        return int(self.redis.xlen(self.base + "dead"))


@pytest.fixture
def graveyard(store_url: str, namespace: str, queue_name: str) -> Iterator[Graveyard]:
    """A queue with dead letters on Valkey."""
    made = Graveyard(store_url, namespace, queue_name)
    yield made
    made.redis.close()


def test_redrives_the_dead_letters_that_rows_name(graveyard: Graveyard) -> None:
    """What is named goes back to ready in the order of the rows; the others stay."""
    entries = graveyard.bury(*(f"m{number}" for number in range(250)))
    changed = graveyard.change([{"entry_id": entry} for entry in entries[:240]])
    assert changed == AttemptResult(2, {graveyard.queue: {"done": 240, "gone": 0, "foreign": 0}})
    assert graveyard.ready() == [b"m%d" % number for number in range(240)]
    assert graveyard.dead() == 10


def test_what_is_dead_no_longer_is_left_alone(graveyard: Graveyard) -> None:
    """A repetition finds its dead letters gone and sends nothing twice; a foreign one stays."""
    entries = graveyard.bury("a", "b") + graveyard.bury("x", envelope="foreign {}")
    rows = [{"entry_id": entry} for entry in entries]
    graveyard.change(rows[:1])
    changed = graveyard.change(rows)
    assert changed.queues == {graveyard.queue: {"done": 1, "gone": 1, "foreign": 1}}
    assert graveyard.ready() == [b"a", b"b"]


def test_dead_letters_are_found_by_message_id(graveyard: Graveyard) -> None:
    """A row may name the message; one that is not dead counts as gone."""
    graveyard.bury(*(f"m{number}" for number in range(250)))
    changed = graveyard.change([{"message_id": "m249"}, {"message_id": "none"}])
    assert changed.queues == {graveyard.queue: {"done": 1, "gone": 1, "foreign": 0}}
    assert graveyard.ready() == [b"m249"]


def test_discards_the_dead_letters_that_rows_name(graveyard: Graveyard) -> None:
    """Discarded dead letters are deleted, and nothing goes to ready."""
    entries = graveyard.bury("a", "b", "c")
    rows = [{"entry_id": entry, "queue": graveyard.queue} for entry in entries[:2]]
    for counts in ({"done": 2, "gone": 0}, {"done": 0, "gone": 2}):
        changed = graveyard.change(rows, action="discard")
        assert changed.queues == {graveyard.queue: {**counts, "foreign": 0}}
    assert (graveyard.dead(), graveyard.ready()) == (1, [])


@pytest.mark.parametrize("rate", ["100", "100/s", "6000/m"])
def test_rate_is_kept(graveyard: Graveyard, rate: str) -> None:
    """Written as on the command line: 20 dead letters at 100 a second take at least 0.2 s."""
    entries = graveyard.bury(*(f"m{number}" for number in range(20)))
    rows = [{"entry_id": entry} for entry in entries]
    begun = time.monotonic()
    graveyard.change(rows, rate=rate)
    assert time.monotonic() - begun >= 0.19
    assert graveyard.dead() == 0


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"entry_id": "5"}, "partition 2, row 1: entry_id: '5' is not an entry id"),
        ({"entry_id": None, "message_id": None}, "row 1: entry_id and message_id are null"),
        ({"queue": "A", "entry_id": "1-0"}, "partition 2, row 1: 'A' is not a valid name"),
    ],
)
def test_bad_row_is_named(graveyard: Graveyard, row: dict[str, Any], text: str) -> None:
    """A row that names nothing ends the write."""
    with pytest.raises((InvalidOptionError, InvalidNameError)) as caught:
        graveyard.change([row])
    assert text in str(caught.value)


def test_counts_are_added_up() -> None:
    """Totals are over tasks, together and per queue."""
    one = AttemptResult(0, {"a": {"done": 1, "gone": 2}, "b": {"done": 5, "foreign": 1}})
    two = AttemptResult(1, {"a": {"done": 3, "gone": 0}})
    assert add_up("redrive", [one, two]) == {
        "action": "redrive",
        "rows": 12,
        "done": 9,
        "gone": 2,
        "foreign": 1,
        "queues": {
            "a": {"rows": 6, "done": 4, "gone": 2, "foreign": 0},
            "b": {"rows": 6, "done": 5, "gone": 0, "foreign": 1},
        },
    }
