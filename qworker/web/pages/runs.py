"""Runs of workflows, listed by state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qworker.formats import ago, moment_after
from qworker.web.page_request import Page

if TYPE_CHECKING:
    from qworker.client.inspect.runs import RunStatus
    from qworker.web.page_request import PageRequest

__all__ = ["TONES", "runs", "waits_of"]

_LISTED: Final = 100
#: State of a run → its tone.
TONES: Final = {"dead": "bad", "lost": "bad", "running": "good", "ok": "good", "cancelled": "warn"}


def runs(request: PageRequest) -> Page:
    """List the runs that have not ended, by state, queue and workflow."""
    listed = request.readings.runs.get()
    wanted = {name: request.query.get(name, "").strip() for name in ("state", "queue", "workflow")}
    counts: dict[str, int] = {}
    for one in listed.runs:
        counts[one.state] = counts.get(one.state, 0) + 1
    found = [
        one
        for one in listed.runs
        if wanted["state"] in ("", one.state)
        and wanted["queue"] in ("", one.queue.partition("/")[0])
        and wanted["workflow"].lower() in one.workflow.lower()
    ]
    number = request.number("page", highest=max(1, -(-len(found) // _LISTED)))
    return Page(
        "runs.html",
        "Runs",
        {
            "rows": [
                (one, TONES.get(one.state, ""), waits_of(one))
                for one in found[(number - 1) * _LISTED : number * _LISTED]
            ],
            "number": len(found),
            "all": len(listed.runs),
            "counts": sorted(counts.items(), key=lambda pair: -pair[1]),
            "tones": TONES,
            "cut": listed.cut,
            "unsearched": listed.unsearched,
            "wanted": wanted,
            "page": number,
            "pages": max(1, -(-len(found) // _LISTED)),
        },
    )


def waits_of(status: RunStatus) -> str:
    """Say what a run waits for."""
    until = moment_after(status.due_ms, status.now_ms) if status.due_ms else ""
    since = f"since {ago(status.since_ms, status.now_ms)}" if status.since_ms else ""
    if status.state == "waiting" and "#" in status.waits_for:
        return f"calls of {status.waits_for}, {since}" if since else f"calls of {status.waits_for}"
    if status.state == "waiting":
        return ", ".join(
            part
            for part in (
                f"signal {status.waits_for}",
                since.replace("since ", "asked "),
                f"gives up {until}" if until else "",
            )
            if part
        )
    return f"continues {until}" if until else ""
