"""Runs of workflows: listed by state, and one with its steps in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from qworker.client.inspect.peek import inspect
from qworker.client.inspect.results import look as look_at_result
from qworker.client.inspect.runs import RunStatus, RunStep, run_steps, statuses
from qworker.errors import InvalidNameError, ProtectionError
from qworker.formats import ago, moment_after, shortened, span
from qworker.web.body import Body, show_value
from qworker.web.look import Page
from qworker.web.pages.life import Step
from qworker.web.pages.queue import inspection_of, unknown
from qworker.web.render import stretches
from qworker.wire.names import check_message_id

if TYPE_CHECKING:
    from qworker.client.queue_ref import QueueRef
    from qworker.web.look import Look

__all__ = ["confirm_cancel_run", "run", "runs"]

_LISTED: Final = 100
_STEPS: Final = 500
_EXCERPT: Final = 200
#: Messages of a queue up to which one is searched for the message of a run that neither sleeps nor waits.
_SEARCHED: Final = 100_000
#: The same for a page that is written again every two seconds.
_SEARCHED_OFTEN: Final = 2_000
_TONES: Final = {"dead": "bad", "lost": "bad", "running": "good", "ok": "good", "cancelled": "warn"}


def runs(look: Look) -> Page:
    """List the runs that have not ended, by state, queue and workflow."""
    listed = look.readings.runs.get()
    wanted = {name: look.query.get(name, "").strip() for name in ("state", "queue", "workflow")}
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
    number = look.number("page", highest=max(1, -(-len(found) // _LISTED)))
    return Page(
        "runs.html",
        "Runs",
        {
            "rows": [
                (one, _TONES.get(one.state, ""), _waits(one))
                for one in found[(number - 1) * _LISTED : number * _LISTED]
            ],
            "number": len(found),
            "all": len(listed.runs),
            "counts": sorted(counts.items(), key=lambda pair: -pair[1]),
            "tones": _TONES,
            "cut": listed.cut,
            "unsearched": listed.unsearched,
            "wanted": wanted,
            "page": number,
            "pages": max(1, -(-len(found) // _LISTED)),
        },
    )


def run(look: Look) -> Page:
    """Show a run: where it stands, its steps in time, what it waits for, and its result."""
    name = look.names["queue"]
    if inspection_of(look) is None:
        return unknown(name)
    client, ref = look.namespace.client, look.namespace.queues.ref(name)
    status = _find(look)
    if status is None:
        return _gone(look)
    recorded = client.run(run_steps(ref, status.id)) or []
    value, ended_as = _result(look, ref, status)
    started_ms = status.started_ms or next((one.at_ms for one in recorded if one.at_ms), None)
    return Page(
        "run.html",
        status.id,
        {
            "name": name,
            "run": status,
            "tone": _TONES.get(status.state, ""),
            "waits": _waits(status),
            "started_ms": started_ms,
            "steps": list(_steps(recorded[:_STEPS], status, started_ms, look)),
            "more_steps": max(0, len(recorded) - _STEPS),
            "value": value,
            "ended_as": ended_as,
        },
    )


def confirm_cancel_run(look: Look) -> Page:
    """Ask before a run is cancelled."""
    name = look.names["queue"]
    if inspection_of(look) is None:
        return unknown(name)
    status = _find(look)
    if status is None or status.ended:
        return _gone(look)
    path = f"/runs/{quote(name)}/{quote(status.id)}"
    return Page(
        "ask.html",
        f"Cancel {status.id}",
        {
            "sentence": f"1 {status.state} run of {name}{f', {status.workflow}' if status.workflow else ''}. It "
            "ends now if it sleeps or waits; if it runs, its handler is asked to stop. Completed steps are not "
            "undone.",
            "warning": "This cannot be undone.",
            "button": "Cancel this run",
            "destroys": True,
            "to": f"{path}/cancel",
            "fields": {},
            "back": look.to(path),
        },
        changes=False,
    )


def _find(look: Look) -> RunStatus | None:
    """Read where a run stands; in a long queue without a search for its message."""
    run_id = look.names["message"]
    try:
        check_message_id(run_id)
    except InvalidNameError:
        return None
    client, ref = look.namespace.client, look.namespace.queues.ref(look.names["queue"])
    inspection = client.run(inspect(ref))
    most = _SEARCHED_OFTEN if look.live else _SEARCHED
    for shard in client.run(_shards(ref)):
        [known] = client.run(statuses(shard, [run_id], search=inspection.stored <= most))
        if known.recorded or (known.message is not None and "c" in known.message.flags):
            return known
    return None


def _shards(ref: QueueRef) -> Any:
    return (yield from ref.every_shard())


def _result(look: Look, ref: QueueRef, status: RunStatus) -> tuple[Body | None, str]:
    """Read what a run that has ended came to."""
    if not status.ended:
        return None, ""
    try:
        outcome = look.namespace.client.run(look_at_result(ref, status.id))
    except ProtectionError as error:
        return Body("", error.problem), ""
    if outcome is None:
        return None, ""
    if outcome.state == "ok":
        return show_value(outcome.value, status.workflow, look.redact), outcome.state
    return None, f"{outcome.state}{f': {outcome.reason}' if outcome.reason else ''}"


def _waits(status: RunStatus) -> str:
    """Say what a run waits for."""
    until = moment_after(status.due_ms, status.now_ms) if status.due_ms else ""
    since = f"since {ago(status.since_ms, status.now_ms)}" if status.since_ms else ""
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
    return f"goes on {until}" if until else ""


def _steps(
    recorded: Sequence[RunStep], status: RunStatus, started_ms: int | None, look: Look
) -> Iterator[Step]:
    """Tell the steps of a run: each from the record before it to its own."""
    if started_ms is None:
        return
    times = [one.at_ms for one in recorded if one.at_ms]
    last_ms = max([status.now_ms if not status.ended else started_ms + 1, *times])
    yield Step("Started", started_ms, "", [status.workflow] if status.workflow else [])
    before_ms = started_ms
    for one in recorded:
        at_ms = one.at_ms or before_ms
        signal = one.name.startswith("!")
        late = signal and not (one.value or one.closed)
        title = (
            f"Signal {one.name[1:]}{': not given in time' if late else ''}" if signal else one.name
        )
        if one.position is not None:
            title = f"each {one.name[1:]}: {one.progress}"
        notes = [f"+{span((at_ms - before_ms) / 1000)}"]
        if one.position is not None:
            notes.append("items that are done")
        elif one.closed:
            notes.append(one.closed)
        elif one.value:
            notes.append(_value(one, status, look))
        part = (before_ms, at_ms, "wait" if signal else "run good")
        yield Step(
            title,
            at_ms,
            "warn" if late else "good",
            notes,
            stretches([part], started_ms, last_ms, f"{title}: {notes[0]}"),
        )
        before_ms = max(before_ms, at_ms)


def _value(one: RunStep, status: RunStatus, look: Look) -> str:
    body = show_value(one.value, status.workflow, look.redact)
    return shortened(" ".join((body.text or f"({body.note})").split()), _EXCERPT)


def _gone(look: Look) -> Page:
    return Page(
        "no_run.html",
        "No such run",
        {"name": look.names["queue"], "id": look.names["message"]},
        status=404,
        changes=False,
    )
