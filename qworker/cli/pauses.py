"""Pauses: a queue may be closed for what is sent (in), for what is received (out), or both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from qworker.cli.screen import print_json, print_line

if TYPE_CHECKING:
    from qworker.cli.session import Session

__all__ = ["change_pauses", "directions"]

_WORDS: Final = {
    "": "not paused",
    "in": "paused in: refuses what is sent",
    "out": "paused out: hands out nothing",
    "all": "paused: refuses what is sent, hands out nothing",
}
_STRICT: Final = "; what times out stays away"


def directions(incoming: bool, outgoing: bool) -> frozenset[str]:
    """Read the flags --in and --out; neither means both."""
    if not incoming and not outgoing:
        return frozenset({"in", "out"})
    return frozenset(name for name, wanted in (("in", incoming), ("out", outgoing)) if wanted)


def change_pauses(
    session: Session,
    names: Sequence[str],
    *,
    strict: bool = False,
    close: frozenset[str] = frozenset(),
    open_: frozenset[str] = frozenset(),
    as_json: bool,
) -> None:
    """Close and open directions of queues, beside those that are closed already, and print what holds then.

    With neither nothing is changed. No names: all queues.

    All names are checked before the first queue is changed.
    """
    queues = [session.queue(name) for name in dict.fromkeys(names or session.queues())]
    paused = {}
    for queue in queues:
        seen = queue.inspect()
        held = {"in", "out"} if seen.paused == "all" else {seen.paused} - {""}
        after = (held | close) - open_
        if close or open_:
            direction = "all" if after == {"in", "out"} else next(iter(after), "none")
            queue.pause(direction, strict=(strict or seen.strict) and "in" in after)
            seen = queue.inspect()
        paused[queue.name] = seen
    if as_json:
        documents = [
            {"queue": name, "paused": each.paused, "strict": each.strict}
            for name, each in paused.items()
        ]
        print_json({"queues": documents})
        return
    for name, each in paused.items():
        text = _WORDS.get(each.paused, each.paused)
        print_line(f"{name}: {text}{_STRICT if each.strict else ''}")
