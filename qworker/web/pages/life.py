"""The life of a message as steps: each delivery with its worker and times, and what happened between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from qworker.formats import count, span
from qworker.web.render import stretches

if TYPE_CHECKING:
    from qworker.client.inspect.life import Event, Life

__all__ = ["TimelineEntry", "steps_of"]

#: The end of a delivery: in words, and its tone.
_ENDS: Final = {
    "acked": ("done", "good"),
    "nacked": ("failed, to be retried", "warn"),
    "released": ("given back, uncounted", ""),
    "timed_out": ("timed out", "bad"),
    "discarded": ("discarded by its handler", ""),
    "dead": ("became a dead letter", "bad"),
    "unsure": ("ended; it is not known how", "warn"),
}
_EVENTS: Final = {
    "sent": ("Sent", ""),
    "promoted": ("Its delay ended", ""),
    "delivered": ("Received", ""),
    "expired": ("Expired before it was received", "warn"),
    "cancelled": ("Cancelled", "warn"),
    "redriven": ("Redriven from the dead letters", ""),
    "purged": ("Deleted by an operator", "bad"),
    "step": ("Recorded a step", ""),
}


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """A line of a message's life: what happened when, and the notes to it; `picture` shows its waiting and running."""

    title: str
    at_ms: int
    tone: str
    notes: Sequence[str] = ()
    picture: Any = ""


def steps_of(history: Life, until_ms: int | None) -> Iterator[TimelineEntry]:
    """Write the life of a message as steps; `until_ms`: now, if it has not ended."""
    events = history.events
    if not events:
        return
    first_ms = min(events[0].sent_ms, events[0].at_ms)
    last_ms = max(events[-1].at_ms if until_ms is None else until_ms, first_ms + 1)
    ended = {(event.receives, event.delivered_ms) for event in events if event.name in _ENDS}
    if events[0].name != "sent":
        yield TimelineEntry("Sent", events[0].sent_ms, "")
    for event in events:
        if event.name in _ENDS:
            yield _delivery(event, first_ms, last_ms)
        elif event.name == "delivered" and (event.receives, event.delivered_ms) in ended:
            continue
        else:
            title, tone = _EVENTS.get(event.name, (event.name.replace("_", " ").capitalize(), ""))
            notes = [f"delivery {event.receives + 1}"] if event.name == "delivered" else []
            notes += [f"by {event.worker}"] if event.worker and event.name == "delivered" else []
            reason = event.reason or ""
            if event.name == "step":
                reason = unquote(reason.rpartition("=")[0])  # without the digest of its value
            notes += [reason] if reason and event.name != "sent" else []
            yield TimelineEntry(title, event.at_ms, tone, notes)


def _delivery(event: Event, first_ms: int, last_ms: int) -> TimelineEntry:
    words, tone = _ENDS[event.name]
    delivered_ms, ready_ms = event.delivered_ms, event.ready_ms
    notes, parts = [], []
    if delivered_ms is not None and ready_ms is not None and ready_ms <= delivered_ms:
        notes.append(f"waited {span((delivered_ms - ready_ms) / 1000)}")
        parts.append((ready_ms, delivered_ms, "wait"))
    if event.start_s is not None and event.run_s is not None:
        begun_ms = (delivered_ms or event.at_ms) + int(event.start_s * 1000)
        if event.start_s >= 0.001:
            notes.append(f"started {span(event.start_s)} after it was received")
        notes.append(f"ran {span(event.run_s)}")
        parts.append((begun_ms, begun_ms + int(event.run_s * 1000), f"run {tone}"))
    elif delivered_ms is not None:
        notes.append(f"lasted {span(max(0, event.at_ms - delivered_ms) / 1000)}")
        parts.append((delivered_ms, event.at_ms, f"run {tone}"))
    notes += [f"by {event.worker}"] if event.worker else []
    notes += [part for part in (event.reason, event.error_class) if part]
    label = f"Delivery {event.receives + 1}: {', '.join(notes[:3])}"
    return TimelineEntry(
        f"Delivery {count(event.receives + 1)}: {words}",
        event.at_ms,
        tone,
        notes,
        stretches(parts, first_ms, last_ms, label),
    )
