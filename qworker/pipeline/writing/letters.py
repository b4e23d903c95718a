"""Redriving or discarding the dead letters that rows name, as one attempt of a task does it. No Spark here.

Only what is still dead is changed: rows are a look at the past, and a repeated attempt finds its letters gone. So
neither needs a ledger.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from qworker.client.commands.command import Command
from qworker.client.commands.redriving import drop, redrive
from qworker.client.commands.sharding import read_shards
from qworker.client.letter_pages import in_stream
from qworker.client.page_size import PageSize
from qworker.client.sync import Client
from qworker.errors import InvalidOptionError
from qworker.pipeline.writing.options import WriteOptions
from qworker.store.connection import ConnectionFactory
from qworker.store.url import ServerURL
from qworker.wire.envelope import Envelope
from qworker.wire.keys import QueueKeys
from qworker.wire.names import check_queue, place_name

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Changed", "LetterChanger", "add_up"]

#: Letters that one call changes.
_PAGE: Final = 100
_ENTRY: Final = re.compile(r"[0-9]{1,19}-[0-9]{1,19}(?:/[0-9]{1,2})?")


@dataclass(frozen=True, slots=True)
class Changed:
    """What an attempt did: per queue how many letters were `done`, `gone` (no longer dead) or `foreign` (not ours)."""

    partition: int
    queues: dict[str, dict[str, int]]


def add_up(action: str, changed: Iterable[Changed]) -> dict[str, Any]:
    """Add up what the tasks did: `rows`, `done`, `gone`, `foreign`, and the same per queue."""
    queues: dict[str, Counter[str]] = {}
    for each in changed:
        for queue, counts in each.queues.items():
            queues.setdefault(queue, Counter()).update(counts)
    together: Counter[str] = sum(queues.values(), Counter())
    return {
        "action": action,
        **_counts(together),
        "queues": {queue: _counts(counts) for queue, counts in sorted(queues.items())},
    }


def _counts(counts: Counter[str]) -> dict[str, int]:
    found = {name: counts[name] for name in ("done", "gone", "foreign")}
    return {"rows": sum(found.values()), **found}


class LetterChanger:
    """Changes dead letters in calls of 100, at most `rate` of them per second where the options say one."""

    def __init__(
        self,
        server: ServerURL,
        options: WriteOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = Client(ConnectionFactory(server, name="qworker-spark"))
        self._options = options
        self._clock = clock
        self._sleep = sleep
        self._begun = clock()
        self._paced = 0
        self._entries: dict[str, dict[str, tuple[str, str]]] = {}
        self._counts: dict[str, Counter[str]] = {}

    def change(self, partition: int, batches: Iterable[pa.RecordBatch]) -> Changed:
        """Change what the rows name. Raises `InvalidOptionError` naming the row that names nothing."""
        number = 0
        with self._client:
            for batch in batches:
                by_place: dict[str, list[str]] = {}
                for row in batch.to_pylist():
                    number += 1
                    place, entry_id = self._named(row, f"partition {partition}, row {number}")
                    by_place.setdefault(place, []).append(entry_id)
                for place, entry_ids in by_place.items():
                    self._change(place, entry_ids)
        return Changed(partition, {queue: dict(each) for queue, each in self._counts.items()})

    def _named(self, row: dict[str, str | None], where: str) -> tuple[str, str]:
        """Return shard and entry id that a row names; '' for a message that is not dead."""
        queue = row.get("queue") or self._options.queue
        entry_id, message_id = row.get("entry_id"), row.get("message_id")
        if queue is None:
            raise InvalidOptionError(
                where, "the queue is null", "name one, or give the option queue"
            )
        check_queue(queue, where)
        if entry_id is not None:
            if _ENTRY.fullmatch(entry_id) is None:
                raise InvalidOptionError(
                    where,
                    f"entry_id {ascii(entry_id)[:80]} is no entry of dead letters",
                    "it is written as in the table 'dead': 1700000000000-0",
                )
            return place_name(queue, int(entry_id.partition("/")[2] or 0)), entry_id
        if message_id is None:
            raise InvalidOptionError(where, "entry_id and message_id are null", "give one of them")
        if queue not in self._entries:
            self._entries[queue] = self._scan(queue)
        return self._entries[queue].get(message_id, (queue, ""))

    def _scan(self, queue: str) -> dict[str, tuple[str, str]]:
        """Tell shard and entry id of all dead letters of a queue by message id: O(n), once per task and queue."""
        known = read_shards(QueueKeys(self._options.namespace, queue))
        return {
            message_id: (place, entry_id)
            for place in self._client.execute(known).names(queue)
            for message_id, entry_id in self._letters(place)
        }

    def _letters(self, place: str) -> Iterator[tuple[str, str]]:
        key, start = QueueKeys(self._options.namespace, place).dead, "-"
        size = PageSize(_PAGE)
        while True:
            asked = size.number
            words = ("XRANGE", key, start, "+", "COUNT", asked)
            page = self._client.execute(Command(None, (), words, lambda reply: reply or []))
            for entry, fields in page:
                found = Envelope.parse(
                    dict(zip(fields[::2], fields[1::2], strict=True))[b"envelope"]
                )
                if found is not None:
                    yield found.id, entry.decode()
            if len(page) < asked:
                return
            size.saw(sum(map(len, fields)) for _, fields in page)
            start = f"({page[-1][0].decode()}"

    def _change(self, place: str, entry_ids: Sequence[str]) -> None:
        keys = QueueKeys(self._options.namespace, place)
        counts = self._counts.setdefault(keys.name, Counter())
        dead = [in_stream(each) for each in entry_ids if each]
        counts["gone"] += len(entry_ids) - len(dead)
        for first in range(0, len(dead), _PAGE):
            page = dead[first : first + _PAGE]
            self._pace(len(page))
            while page:
                # A call ends after 1 MiB.
                changed = self._call(keys, page)
                counts.update(changed)
                page = page[sum(changed.values()) :]

    def _call(self, keys: QueueKeys, page: Sequence[str]) -> dict[str, int]:
        if self._options.action == "discard":
            dropped, seen = self._client.execute(drop(keys, page))
            return {"done": dropped, "gone": seen - dropped}
        results = self._client.execute(redrive(keys, page))
        done, foreign = results.count(1), results.count(-1)
        return {"done": done, "foreign": foreign, "gone": len(results) - done - foreign}

    def _pace(self, number: int) -> None:
        """Wait until `number` more letters keep to the rate."""
        if self._options.rate:
            early_s = self._paced / self._options.rate - (self._clock() - self._begun)
            if early_s > 0:
                self._sleep(early_s)
            self._paced += number
