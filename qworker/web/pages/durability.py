"""What can be lost: each fault of the server, and its losses with the present settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qworker.daemon.durability import Grade
from qworker.health.losses import Extent, losses, replicas
from qworker.web.page_request import Page

if TYPE_CHECKING:
    from qworker.web.page_request import PageRequest

__all__ = ["durability"]

_TONES: Final = {Extent.NOTHING: "good", Extent.LATEST: "warn", Extent.MUCH: "bad"}
_GRADES: Final = {
    Grade.LOSS: ("problem", "loses messages"),
    Grade.OPEN: ("warning", "open to others"),
    Grade.RISK: ("warning", "risk"),
    Grade.UNKNOWN: ("warning", "unknown"),
}


def durability(request: PageRequest) -> Page:
    """Show the confirmed messages that each fault would lose, for each server of the namespace."""
    found = request.readings.durability.get()
    return Page(
        "durability.html",
        "What can be lost",
        {
            "engine": found.engine,
            "release": found.version,
            "durable": found.durable,
            "nodes": [
                (
                    str(facts.node) if len(found.nodes) > 1 else "",
                    [
                        (one, _TONES.get(one.extent, ""))
                        for one in losses(facts, request.sample.now_ms)
                    ],
                    replicas(facts.info),
                )
                for facts in found.nodes
            ],
            "weaknesses": [(one, *_GRADES[one.grade]) for one in found.findings],
        },
        card=True,
    )
