"""Schedules: what each sends, its next slots, whether it fires, and the message that it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qworker.app.schedule import parse_schedule
from qworker.errors import InvalidOptionError
from qworker.formats import ago, moment
from qworker.web.page_request import Page
from qworker.web.question import Question

if TYPE_CHECKING:
    from qworker.daemon.schedule_listing import ListedSchedule
    from qworker.web.page_request import PageRequest

__all__ = ["confirm_remove", "schedules"]

_PER_PAGE: Final = 100
_SLOTS: Final = 3


def schedules(request: PageRequest) -> Page:
    """List the schedules, found by a part of their name, task or queue; those that need a person first."""
    wanted = request.query.get("q", "").strip().lower()
    listed = request.readings.schedules.get()
    fitting = [one for one in listed if wanted in f"{one.name} {one.task} {one.queue}".lower()]
    fitting.sort(key=lambda one: (one.fires, one.next_ms or 0))
    number = request.number("page", highest=max(1, -(-len(fitting) // _PER_PAGE)))
    first = (number - 1) * _PER_PAGE
    now_ms = request.sample.now_ms
    return Page(
        "schedules.html",
        "Schedules",
        {
            "rows": [
                (one, _state(one, now_ms), _slots(one, now_ms))
                for one in fitting[first : first + _PER_PAGE]
            ],
            "number": len(fitting),
            "all": len(listed),
            "wanted": wanted,
            "page": number,
            "pages": max(1, -(-len(fitting) // _PER_PAGE)),
            "reapers": sum(not reaper.is_gone for reaper in request.sample.reapers),
        },
    )


def confirm_remove(request: PageRequest) -> Page:
    """Ask before a schedule is removed."""
    queue, name = request.query.get("queue", ""), request.query.get("name", "")
    found = [
        one for one in request.readings.schedules.get() if (one.queue, one.name) == (queue, name)
    ]
    if not found:
        return Page("no_schedule.html", "No such schedule", {}, status=404, changes=False)
    [one] = found
    running = {worker.described.app for worker in request.sample.workers if not worker.is_gone}
    again = (
        f"Its app {one.app} is running: its next worker registers it again. Pause it instead."
        if one.app in running
        else "It does not fire from now on."
    )
    return Question(
        sentence=f"1 schedule of {queue}, which sends {one.task or 'a task'}: {one.spec}. {again}",
        warning="This cannot be undone here.",
        button="Remove this schedule",
        destroys=True,
        to="/schedules/rm",
        fields={"queue": queue, "name": name},
        back=request.to("/schedules"),
    ).page(f"Remove {name}")


def _state(one: ListedSchedule, now_ms: int) -> tuple[str, str, str]:
    """Say whether a schedule fires: the state, its tone, and a note."""
    if one.problem:
        return "broken", "bad", one.problem
    if one.paused_ms is not None:
        return "paused", "warn", ago(one.paused_ms, now_ms)
    if one.orphaned and one.app_seen_ms is not None:
        return "orphan", "bad", f"its app was last seen {ago(one.app_seen_ms, now_ms)}"
    if one.next_ms is None:
        return "ended", "warn", "it has no slot left"
    if one.waits:
        return "waits", "warn", "for the message of an earlier slot"
    if one.running:
        return "runs", "good", "the message of a slot"
    return "fires", "good", ""


def _slots(one: ListedSchedule, now_ms: int) -> list[tuple[str, str]]:
    """Return the next slots: how far they are, and when."""
    if not one.fires:
        return []
    try:
        schedule = parse_schedule(one.spec)
    except InvalidOptionError:
        return []
    slots, at_ms = [], now_ms
    for _ in range(_SLOTS):
        at_ms = schedule.next_after_ms(at_ms)
        slots.append((ago(at_ms, now_ms), moment(at_ms)))
    return slots
