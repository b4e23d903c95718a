"""The life of one message, by the journal of its queue: the latest entries first, from a bounded number."""

from __future__ import annotations

import re
import struct
from binascii import a2b_base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from qworker.client.page_size import PageSize
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.raw import raw
from qworker.wire.names import check_message_id
from qworker.wire.numbers import whole

__all__ = ["Event", "Life", "life"]

_FIELDS: Final = [b"n", b"k", b"b", b"t", b"w", b"e1"]
_HEADER: Final = re.compile(
    rb"q1 [^ ]+ ([0-9]{1,16}) ([0-9]{1,9}) ([0-9]{1,9}) ([0-9]{1,9}) [0-9]{1,9}((?: [^ ]*)*)"
)
_FIRST: Final = re.compile(
    rb"([a-z_]{1,40}) (-|[0-9]{1,16}) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+)", re.ASCII
)
_READY: Final = re.compile(rb" t=([0-9]{1,16})(?: |$)")
_PAGE: Final = 500
#: An entry's own size without its groups, as the cap counts it.
_ENTRY: Final = 64
#: Entries are in the order of time, but for clocks that are set back by a failover.
_SLACK_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a message at `at_ms`; what is unknown is None or ''.

    `ready_ms`: since when it was ready. `delivered_ms`: when it was received. `start_s` and `run_s`: seconds from then
    to the start of its handler, and of its run. `worker` is `<host>:<pid>`. `receives` and the counts are those before
    the event.
    """

    name: str
    at_ms: int
    queue: str
    sent_ms: int
    receives: int
    nacks: int
    timeouts: int
    worker: str = ""
    task: str = ""
    reason: str = ""
    error_class: str = ""
    ready_ms: int | None = None
    delivered_ms: int | None = None
    start_s: float | None = None
    run_s: float | None = None


@dataclass(slots=True)
class Life:
    """Events, the oldest first. `read`: entries that were read; `whole`: all of them, or from the send on."""

    events: list[Event] = field(default_factory=list)
    read: int = 0
    whole: bool = True


def life(
    queue: QueueRef, message_id: str, *, most_bytes: int, sent_ms: int | None = None
) -> Plan[Life]:
    """Read the events of a message from the latest `most_bytes` of its journals, of each shard its part.

    `sent_ms`: when it was sent, if that is known: nothing before is read.
    """
    check_message_id(message_id)
    needle = b"q1 %s " % message_id.encode()
    shards, result = (yield from queue.journals()), Life()
    for shard in shards:
        since_ms, end, bytes_read = sent_ms, "+", 0
        size = PageSize(_PAGE)
        while True:
            asked = size.number
            words = ("XREVRANGE", shard.keys.journal, end, "-", "COUNT", asked)
            reply: list[Any] = yield raw(*words, decode=list)
            result.read += len(reply)
            lengths = [sum(map(len, fields)) + _ENTRY for _, fields in reply]
            bytes_read += sum(lengths)
            size.saw(lengths)
            oldest_ms = None
            for _, fields in reply:
                if fields[::2] != _FIELDS:
                    continue  # another format, which the pipeline reports
                oldest_ms = whole(fields[7])
                if needle in fields[11]:
                    events = list(_events(shard.keys.queue, fields, needle))
                    result.events += reversed(events)
                    since_ms = min([event.sent_ms for event in events], default=since_ms)
            if len(reply) < asked:
                break
            if since_ms is not None and oldest_ms is not None and oldest_ms < since_ms - _SLACK_MS:
                break
            if bytes_read * len(shards) >= most_bytes:
                result.whole = False
                break
            end = f"({reply[-1][0].decode()}"
    result.events.reverse()
    if len(shards) > 1:
        result.events.sort(key=lambda event: event.at_ms)
    return result


def _events(queue: str, fields: Sequence[bytes], needle: bytes) -> Iterator[Event]:
    """Read the events of a message in an entry; a line that cannot be read is left out."""
    at_ms, worker = whole(fields[7]) or 0, _text(fields[9])
    for group in fields[11].split(b"\n\n"):
        first, *rows = group.split(b"\n")
        common = _FIRST.fullmatch(first)
        if common is None:
            continue
        name, delivered, times, task, reason, error_class = map(_text, common.groups())
        seconds = _seconds(times, len(rows))
        for at, row in enumerate(rows):
            header = _HEADER.fullmatch(row) if row.startswith(needle) else None
            if header is None:
                continue
            sent_ms, receives, nacks, timeouts = (int(header[part]) for part in (1, 2, 3, 4))
            ready = _READY.search(header[5])
            start_s, run_s = seconds[at]
            yield Event(
                name,
                at_ms,
                queue,
                sent_ms,
                receives,
                nacks,
                timeouts,
                worker,
                task,
                reason,
                error_class,
                int(ready[1]) if ready else (None if receives else sent_ms),
                whole(delivered),
                start_s,
                run_s,
            )


def _seconds(written: str, number: int) -> list[tuple[float | None, float | None]]:
    """Read the times of a group: two floats for each event."""
    try:
        data = a2b_base64(written) if written else b""
    except ValueError:  # `binascii.Error` among them
        data = b""
    if len(data) != 8 * number:
        return [(None, None)] * number
    floats = struct.unpack(f"<{2 * number}f", data)
    return [
        (_known(start), _known(run)) for start, run in zip(floats[::2], floats[1::2], strict=True)
    ]


def _known(seconds: float) -> float | None:
    return seconds if 0 <= seconds < 1e9 else None


def _text(word: bytes) -> str:
    return "" if word == b"-" else word.decode("utf-8", "replace")
