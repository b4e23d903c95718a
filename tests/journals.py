"""The journal as tests read and write it: an event a line, with its times in ms and microseconds.

<event> <delivered_ms> <started_ms> <run_us> <task> <reason> <error class> <header>
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable
from itertools import groupby

__all__ = ["event_lines", "groups_of", "told_times"]


def event_lines(groups: bytes | str) -> list[str]:
    """Take groups apart, those of an entry or what a child tells; see docs/protocol.md."""
    text = groups.decode() if isinstance(groups, bytes) else groups
    lines = []
    for group in text.split("\n\n"):
        first, *headers = group.split("\n")
        event, delivered, times, *rest = first.split(" ")
        for header, *of_event in zip(headers, *_times(delivered, times, len(headers)), strict=True):
            assert header.startswith("q1 "), header
            lines.append(" ".join([event, delivered, *of_event, *rest, header[3:]]))
    return lines


def groups_of(lines: Iterable[str]) -> list[tuple[int, bytes]]:
    """Make groups of lines, each with the number of its events; neighbours that have all in common go together."""
    groups = []
    parted = [line.split(" ", 7) for line in lines]
    for (event, delivered, is_known, *rest), some in groupby(
        parted, key=lambda each: [*each[:2], each[2] != "-", *each[4:7]]
    ):
        events = list(some)
        begun = [(int(each[2]) - int(delivered), int(each[3])) for each in events if is_known]
        first = " ".join([event, delivered, _packed(begun), *rest])
        headers = "".join(f"\nq1 {each[7]}" for each in events)
        groups.append((len(events), (first + headers).encode("latin-1")))
    return groups


def told_times(times: str) -> str:
    """Write `<delivered_ms> <started_ms> <run_us> <task>` as the scripts take it with an outcome."""
    if not times:
        return ""
    delivered, started, run_us, task = times.split(" ")
    begun = [] if started == "-" else [(int(started) - int(delivered), int(run_us))]
    return f"{delivered} {_packed(begun)} {task}"


def _times(delivered: str, times: str, number: int) -> tuple[list[str], list[str]]:
    """When each began, and how many microseconds it ran; '-' where it is not known."""
    if times == "-":
        return ["-"] * number, ["-"] * number
    seconds = struct.unpack(f"<{2 * number}f", b64decode(times, validate=True))
    started = [str(int(delivered) + round(second * 1000)) for second in seconds[::2]]
    return started, [str(round(second * 1e6)) for second in seconds[1::2]]


def _packed(begun: list[tuple[int, int]]) -> str:
    """Pack of each event the ms from the delivery to the start, and the microseconds that it ran."""
    seconds = [each for ms, run_us in begun for each in (ms / 1000, run_us / 1e6)]
    return b64encode(struct.pack(f"<{len(seconds)}f", *seconds)).decode() or "-"
