"""The stored data of a message, in words: its kind, its place, its header, and the chain that it is a step of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qworker.client.steps import following, past_of
from qworker.formats import moment_after, span
from qworker.wire.calls import member_of
from qworker.wire.groups import shown
from qworker.wire.numbers import whole

if TYPE_CHECKING:
    from qworker.client.inspect.peek import Inspection
    from qworker.client.message import Stored

__all__ = ["KINDS", "chain_of", "headers_of", "place_of"]

KINDS: Final = {
    "plain": "plain JSON, pushed without qworker",
    "newer": "written by a newer version of qworker",
    "foreign": "not written by qworker: consumers cannot handle it",
}


def place_of(one: Stored, now_ms: int) -> str:
    """Say where a message is, and when it moves on."""
    at = moment_after(one.at_ms, now_ms) if one.at_ms is not None else ""
    return {
        "ready": "waits to be received",
        "delayed": f"becomes ready {at}",
        "held": "waits until it is enqueued",
        "unacked": f"is being handled; requeued {at} unless it is settled or extended",
        "dead": "is a dead letter",
    }.get(one.state, one.state)


def headers_of(one: Stored, inspection: Inspection) -> list[tuple[str, str]]:
    """Name the fields of a message's header; leaves out those that are not set."""
    now_ms, flags = inspection.now_ms, one.flags

    def moment_of(flag: str) -> str:
        at_ms = whole(flags.get(flag))
        return "" if at_ms is None else moment_after(at_ms, now_ms)

    def span_of(flag: str) -> str:
        lasts_ms = whole(flags.get(flag))
        return "" if lasts_ms is None else span(lasts_ms / 1000)

    visibility = "at most once" if flags.get("v") == "0" else span_of("v")
    pairs = [
        ("sent", moment_after(one.sent_ms, now_ms) if one.sent_ms is not None else ""),
        ("deliveries", f"{one.receives:,}"),
        ("failures", f"{one.nacks:,}"),
        ("timeouts", f"{one.timeouts:,}"),
        ("priority", flags.get("p", "0")),
        ("first received", moment_of("f")),
        ("ready from" if (whole(flags.get("t")) or 0) > now_ms else "ready since", moment_of("t")),
        ("expires", moment_of("x")),
        ("visibility", visibility),
        ("max receives", flags.get("m", "")),
        ("group", shown(flags.get("g", ""))),
        ("unique key", flags.get("u", "")),
        ("redrives", flags.get("d", "")),
        ("keeps its result", span_of("r")),
        ("schedule", flags.get("n", "")),
        ("result of its chain", _last_of(flags.get("j", ""))),
        ("trace", flags.get("w", "")),
        ("signed with", flags.get("s", "").partition(".")[0]),
        ("encrypted with", flags.get("e", "").partition(".")[2]),
        ("size", f"{len(one.item):,} bytes"),
        ("shard", one.queue if "/" in one.queue else ""),
    ]
    return [(name, text) for name, text in pairs if text]


def _last_of(flag: str) -> str:
    """Name the message that keeps the result of a chain, by the flag j of one of its steps; '' if none does."""
    queue, _, rest = flag.partition(":")
    return f"{rest.partition(':')[0]} of {queue}" if rest else ""


def chain_of(stored: Stored | None) -> dict[str, object]:
    """Return the steps before and after a step of a chain, as its body names them, and where its end is counted."""
    if stored is None or stored.unreadable:
        return {"before": [], "chain": [], "member": None}
    past = past_of(stored.body)
    # A step is sent when the one before it ends.
    ends_ms = [one.sent_ms for one in past[1:]] + [stored.sent_ms or 0] * bool(past)
    before = [
        (one, max(0, end_ms - one.sent_ms) / 1000)
        for one, end_ms in zip(past, ends_ms, strict=True)
    ]
    return {
        "before": before,
        "chain": following(stored.body),
        "member": member_of(stored.flags.get("i", "")),
    }
