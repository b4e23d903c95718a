"""A queue: where its messages are, how fast they move, its attributes, and what can be done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qworker.client.inspect.peek import Inspection
from qworker.client.inspect.rates import COUNTERS
from qworker.client.manage.attribute_text import read_attributes
from qworker.errors import BrokenQueueError, InvalidNameError, QworkerError
from qworker.monitor.rows import row_of
from qworker.web.page_request import Page
from qworker.wire.names import check_queue

if TYPE_CHECKING:
    from qworker.web.page_request import PageRequest

__all__ = ["inspection_of", "queue", "unknown"]

#: Counters that are shown even before they count.
_ALWAYS: Final = ("sent", "acked")


def queue(request: PageRequest) -> Page:
    """Show one queue."""
    name = request.names["queue"]
    try:
        check_queue(name)
    except InvalidNameError:
        return unknown(name)
    if name not in request.sample.queues:
        return unknown(name)
    row = row_of(request.sample, name)
    if row.queue is None:
        error = request.sample.queues[name]
        if isinstance(error, QworkerError) and not isinstance(error, BrokenQueueError):
            raise error
        return Page("broken.html", name, {"name": name, "error": error}, (name,))
    inspection, rates = row.queue, request.sample.rates(name)
    counters = [
        (counter, inspection.stats.get(counter, 0), rates.get(counter), meaning)
        for counter, meaning in COUNTERS.items()
        if inspection.stats.get(counter) or counter in _ALWAYS
    ]
    return Page(
        "queue.html",
        name,
        {
            "name": name,
            "row": row,
            "queue": inspection,
            "places": _places(inspection),
            "workers": [worker for worker in request.sample.workers if worker.listens_to(name)],
            "counters": counters,
            "reasons": _reasons(inspection),
            "attributes": read_attributes(inspection.meta),
        },
        (name,),
        card=True,
    )


def inspection_of(request: PageRequest, name: str | None = None) -> Inspection | None:
    """Return what was read of a queue, by default the one that the path names; None if there is no such queue.

    Raises its error if it could not be read.
    """
    name = request.names["queue"] if name is None else name
    try:
        check_queue(name)
    except InvalidNameError:
        return None
    found = request.sample.queues.get(name)
    if found is not None and not isinstance(found, Inspection):
        raise found
    return found


def unknown(name: str) -> Page:
    """Say that there is no such queue."""
    return Page("no_queue.html", "No such queue", {"name": name}, status=404)


def _places(queue: Inspection) -> list[tuple[str, int, str]]:
    """Return where messages are: the state, how many, and when the next of them moves."""
    levels = [(f"priority {p}", n) for p, n in enumerate(queue.ready_by_priority) if n and p]
    levels += [("suspect", queue.suspect)] if queue.suspect else []
    return [
        ("ready", queue.ready, ", ".join(f"{n:,} {level}" for level, n in reversed(levels))),
        ("unacked", queue.unacked, ""),
        ("delayed", queue.delayed, f"{queue.held:,} held" if queue.held else ""),
        ("dead", queue.dead, ""),
    ]


def _reasons(queue: Inspection) -> list[tuple[str, int]]:
    reasons = {
        name.removeprefix("dead:"): number
        for name, number in queue.stats.items()
        if name.startswith("dead:") and number
    }
    return sorted(reasons.items(), key=lambda reason: -reason[1])
