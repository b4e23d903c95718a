"""Put beside the workers of the fault tests as `sitecustomize.py`: they note every ack that the server has confirmed.

A line `acked ID` is appended after the reply and synced, by whoever settles: the child, or a dead one's supervisor.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from qworker.consumer import hand, keeper, telling
from qworker.wire.envelope import Envelope

_FILE = os.open(os.environ["FAULTS_HISTORY"], os.O_APPEND | os.O_CREAT | os.O_WRONLY)


def _note(*words: object) -> None:
    os.write(_FILE, (json.dumps([time.time(), os.getpid(), *words]) + "\n").encode())
    os.fsync(_FILE)


def _id_of(item: bytes) -> str:
    envelope = Envelope.parse(item)
    return envelope.id if envelope is not None else ""


def _watch_children() -> None:
    held: dict[str, dict[str, str]] = {}
    hold, settled = hand.Hand.hold, telling.Teller.settled

    def hold_and_remember(self: Any, entry: Any, batch: Any) -> Any:
        pairs = zip(batch.indices, batch.items, strict=True)
        held[batch.lease_id] = {index: _id_of(item) for index, item in pairs}
        return hold(self, entry, batch)

    def settle_and_note(self: Any, told: Any, counts: Any) -> None:
        for each, count in zip(told, counts, strict=True):
            ids = held[each.lease.id]
            acks = list(ids) if each.outcomes.ack_all else each.outcomes.acks
            # Only where all of it counted is it sure which of it did.
            if count == each.number:
                for index in acks:
                    _note("acked", ids.pop(index))
        settled(self, told, counts)

    hand.Hand.hold = hold_and_remember  # type: ignore[method-assign]
    telling.Teller.settled = settle_and_note  # type: ignore[method-assign]


def _watch_supervisors() -> None:
    found: dict[tuple[str, str], str] = {}
    read, settle = keeper.Keeper._read, keeper.Keeper._settle

    def read_and_remember(self: Any, keys: Any, lease_id: str, indices: Any) -> Any:
        for index, item in read(self, keys, lease_id, indices):
            found[lease_id, index] = _id_of(item)
            yield index, item

    def settle_and_note(self: Any, keys: Any, outcomes: Any) -> int:
        count = settle(self, keys, outcomes)
        if count == len(outcomes):
            for index in outcomes.acks:
                _note("acked", found[outcomes.lease_id, index])
        return count

    keeper.Keeper._read = read_and_remember  # type: ignore[method-assign]
    keeper.Keeper._settle = settle_and_note  # type: ignore[method-assign]


_watch_children()
_watch_supervisors()
