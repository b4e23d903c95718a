"""One run: its steps in time, those that ran at once side by side, what it waits for, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from qworker.client.inspect.peek import inspect
from qworker.client.inspect.results import outcome as outcome_of
from qworker.client.inspect.runs import ACTIVE, RunStatus, RunStep, is_gather, run_steps, statuses
from qworker.errors import InvalidNameError, ProtectionError
from qworker.formats import shortened, span
from qworker.web.body import Body, show_value
from qworker.web.page_request import Page
from qworker.web.pages.life import TimelineEntry
from qworker.web.pages.queue import inspection_of, unknown
from qworker.web.pages.runs import TONES, waits_of
from qworker.web.pages.stages import Part, Stage, stages_of
from qworker.web.question import FOR_GOOD, Question
from qworker.web.render import stretches
from qworker.wire.calls import gather_id
from qworker.wire.names import check_message_id

if TYPE_CHECKING:
    from qworker.client.queue_ref import QueueRef
    from qworker.web.page_request import PageRequest

__all__ = ["confirm_cancel_run", "run"]

_STEPS: Final = 500
_EXCERPT: Final = 200
#: A pause before a step that is long enough to be shown.
_GAP_S: Final = 1.0
#: Messages of a queue, dead ones too, up to which it is searched for the message of a run that does not sleep or wait.
_SEARCHED: Final = 20_000
#: The same for a page that is written again every two seconds.
_SEARCHED_OFTEN: Final = 2_000


def run(request: PageRequest) -> Page:
    """Show a run: where it stands, its steps in time, what it waits for, and its result."""
    name = request.names["queue"]
    if inspection_of(request) is None:
        return unknown(name)
    client, ref = request.namespace.client, request.namespace.queues.ref(name)
    status = _find(request)
    if status is None:
        return _gone(request)
    recorded = client.run(run_steps(ref, status.id)) or []
    value, ended_as = _result(request, ref, status)
    started_ms = status.started_ms or next((one.at_ms for one in recorded if one.at_ms), None)
    return Page(
        "run.html",
        status.id,
        {
            "name": name,
            "run": status,
            "tone": TONES.get(status.state, ""),
            "waits": waits_of(status),
            "gathers": gather_id(status.id, f"!{status.waits_for}")
            if status.state == "waiting" and is_gather(status.waits_for)
            else "",
            "started_ms": started_ms,
            "stages": _stages(recorded[:_STEPS], status, started_ms, request),
            "handlers": _handlers(status, request),
            "more_steps": max(0, len(recorded) - _STEPS),
            "value": value,
            "ended_as": ended_as,
        },
        (name,),
        reads=True,
    )


def confirm_cancel_run(request: PageRequest) -> Page:
    """Ask before a run is cancelled."""
    name = request.names["queue"]
    if inspection_of(request) is None:
        return unknown(name)
    status = _find(request)
    if status is None:
        return _gone(request)
    if status.ended:
        return run(request)
    path = f"/runs/{quote(name)}/{quote(status.id)}"
    return Question(
        sentence=f"1 {status.state} run of {name}{f', {status.workflow}' if status.workflow else ''}. It "
        "ends now if it sleeps or waits; if it runs, its handler is asked to stop. Completed steps are not "
        "undone.",
        warning=FOR_GOOD,
        button="Cancel this run",
        destroys=True,
        to=f"{path}/cancel",
        back=request.to(path),
    ).page(f"Cancel {status.id}")


def _find(request: PageRequest) -> RunStatus | None:
    """Read where a run stands; in a long queue without a search for its message: then its result says if it is dead."""
    run_id = request.names["message"]
    try:
        check_message_id(run_id)
    except InvalidNameError:
        return None
    client, ref = request.namespace.client, request.namespace.queues.ref(request.names["queue"])
    inspection = client.run(inspect(ref))
    long = inspection.stored + inspection.dead > (_SEARCHED_OFTEN if request.live else _SEARCHED)
    for shard in client.run(_shards(ref)):
        [known] = client.run(statuses(shard, [run_id], search=not long))
        if known.recorded or (known.message is not None and "c" in known.message.flags):
            return _dead_by_result(request, ref, known) if known.state == ACTIVE else known
    return None


def _dead_by_result(request: PageRequest, ref: QueueRef, status: RunStatus) -> RunStatus:
    """Return `status`, dead if its result says so: that is kept for a day, or as long as the workflow's results."""
    try:
        outcome = request.namespace.client.run(outcome_of(ref, status.id))
    except ProtectionError:
        return status
    is_dead = outcome is not None and outcome.state == "dead"
    return msgspec.structs.replace(status, state="dead") if is_dead else status


def _shards(ref: QueueRef) -> Any:
    return (yield from ref.every_shard())


def _result(request: PageRequest, ref: QueueRef, status: RunStatus) -> tuple[Body | None, str]:
    """Read the result of a run that has ended."""
    if not status.ended:
        return None, ""
    try:
        outcome = request.namespace.client.run(outcome_of(ref, status.id))
    except ProtectionError as error:
        return Body("", error.problem), ""
    if outcome is None:
        return None, ""
    if outcome.state == "ok":
        return show_value(outcome.value, status.workflow, request.redact), outcome.state
    return None, f"{outcome.state}{f': {outcome.reason}' if outcome.reason else ''}"


def _handlers(status: RunStatus, request: PageRequest) -> list[str]:
    """Say which worker runs it now, and for how long."""
    receipt = status.message.receipt if status.message is not None else None
    return [
        f"in {run.worker}, pid {run.pid}, for {span(run.seconds)}"
        for worker in request.sample.workers
        for run in worker.running
        if receipt is not None and run.message_id == str(receipt)
    ]


def _stages(
    recorded: Sequence[RunStep], status: RunStatus, started_ms: int | None, request: PageRequest
) -> list[Stage]:
    """Arrange the steps of a run in time: each from its beginning to its record."""
    if started_ms is None:
        return []
    ends = [one.at_ms for one in recorded if one.at_ms]
    # While nothing runs, the picture ends with the last step: a wait of days would leave nothing of the others.
    busy = status.state in ("running", "ready", "active")
    last_ms = max([status.now_ms if busy else started_ms + 1, *ends])
    parts = [
        Part(at_ms - one.lasted_ms, at_ms, one)
        for one in recorded
        if (at_ms := one.at_ms or started_ms) is not None
    ]

    def write(part: Part[RunStep], before_ms: int, axis: tuple[int, int]) -> TimelineEntry:
        return _step(part, before_ms, axis, status, request)

    begun = TimelineEntry("Started", started_ms, "", [status.workflow] if status.workflow else [])
    return [Stage(started_ms, started_ms, [[begun]]), *stages_of(parts, started_ms, last_ms, write)]


def _step(
    part: Part[RunStep],
    before_ms: int,
    axis: tuple[int, int],
    status: RunStatus,
    request: PageRequest,
) -> TimelineEntry:
    """Write a step; `before_ms`: when the step before it ended, from which a wait for a signal counts."""
    one = part.of
    signal = one.name.startswith("!")
    late = signal and not (one.value or one.closed)
    title = f"Signal {one.name[1:]}{': not given in time' if late else ''}" if signal else one.name
    gather = signal and is_gather(one.name)
    if gather:
        title = f"Gathered {one.name[1:]}"
    gap_s = (part.start_ms - before_ms) / 1000
    notes = [f"took {span(one.lasted_ms / 1000)}"] if one.lasted_ms else []
    if signal:
        notes.append(f"waited {span(max(0, gap_s))}")
    elif gap_s >= _GAP_S or not notes:
        notes.append(f"{span(max(0, gap_s))} after the step before")
    if one.position is not None:
        title = f"each {one.name[1:]}: {one.progress}"
        notes.append("items that are done")
    elif gather:
        notes.append("its calls have ended")
    elif one.closed:
        notes.append(one.closed)
    elif one.value:
        notes.append(_value(one, status, request))
    since_ms = min(before_ms, part.end_ms) if signal else part.start_ms
    drawn = (since_ms, part.end_ms, "wait" if signal else "run good")
    return TimelineEntry(
        title,
        part.end_ms,
        "warn" if late else "good",
        notes,
        stretches([drawn], *axis, f"{title}: {notes[0]}"),
    )


def _value(one: RunStep, status: RunStatus, request: PageRequest) -> str:
    body = show_value(one.value, status.workflow, request.redact)
    return shortened(" ".join((body.text or f"({body.note})").split()), _EXCERPT)


def _gone(request: PageRequest) -> Page:
    return Page(
        "no_run.html",
        "No such run",
        {"name": request.names["queue"], "id": request.names["message"]},
        status=404,
        changes=False,
    )
