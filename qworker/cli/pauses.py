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


def directions(incoming: bool, outgoing: bool) -> frozenset[str]:
    """Read the flags --in and --out; neither means both."""
    if not incoming and not outgoing:
        return frozenset({"in", "out"})
    return frozenset(name for name, wanted in (("in", incoming), ("out", outgoing)) if wanted)


def change_pauses(
    session: Session,
    names: Sequence[str],
    *,
    close: frozenset[str] = frozenset(),
    open_: frozenset[str] = frozenset(),
    as_json: bool,
) -> None:
    """Close and open directions of queues, beside those that are closed already, and print what holds then.

    All names are checked before the first queue is changed.
    """
    queues = [session.queue(name) for name in dict.fromkeys(names)]
    paused = {}
    for queue in queues:
        before = queue.inspect().paused
        held = {"in", "out"} if before == "all" else {before} - {""}
        after = (held | close) - open_
        if after == {"in", "out"}:
            queue.pause("all")
        elif after:
            queue.pause(*after)
        else:
            queue.resume()
        paused[queue.name] = queue.inspect().paused
    if as_json:
        print_json({"queues": [{"queue": name, "paused": each} for name, each in paused.items()]})
        return
    for name, each in paused.items():
        print_line(f"{name}: {_WORDS.get(each, each)}")
