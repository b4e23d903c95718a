"""Events for the journal, in groups as `settle` takes them; docs/protocol.md has the format.

<event> <delivered_ms> <times> <task> <reason> <error class>
q1 <header>
q1 <header>
"""

from __future__ import annotations

import struct
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from qworker.engine.settle import MAX_GROUP, Group

__all__ = ["UNKNOWN", "acked_groups", "acked_headers", "times_word"]

UNKNOWN: Final = "-"


def acked_headers(delivered_ms: int, headers: Iterable[tuple[str, bytes]]) -> list[Group]:
    """Write the events of acks without times, from their tasks and headers, in this order."""
    return [
        group
        for task, some in groupby(headers, key=itemgetter(0))
        for group in acked_groups(delivered_ms, task, [header for _, header in some], [], [])
    ]


def times_word(
    delivered_ms: int, task: str = UNKNOWN, start_s: float | None = None, run_s: float = 0.0
) -> str:
    """Write the times of one delivery; `start_s`, from receive to start, is None if its handler never started."""
    times = UNKNOWN if start_s is None else _times([start_s], [run_s])
    return f"{delivered_ms} {times} {task}"


def acked_groups(
    delivered_ms: int,
    task: str,
    headers: Sequence[bytes],
    starts: Sequence[float],
    runs: Sequence[float],
) -> Iterator[Group]:
    """Write the events of acks of one task in as few groups as hold them; without times if `starts` is empty."""
    times, number = _times(starts, runs), len(headers)
    first = f"acked {delivered_ms} {times} {task} - -\n"
    group = first.encode() + b"".join(headers)[:-1]
    if len(group) <= MAX_GROUP or number == 1:
        yield number, group[:MAX_GROUP]
        return
    half = number // 2
    yield from acked_groups(delivered_ms, task, headers[:half], starts[:half], runs[:half])
    yield from acked_groups(delivered_ms, task, headers[half:], starts[half:], runs[half:])


def _times(starts: Sequence[float], runs: Sequence[float]) -> str:
    """Write per event the seconds from delivery to start and the seconds it ran: 4-byte floats in base64."""
    if not starts:
        return UNKNOWN
    seconds = [0.0] * (2 * len(starts))
    seconds[::2], seconds[1::2] = starts, runs
    return b2a_base64(struct.pack(f"<{len(seconds)}f", *seconds), newline=False).decode()
