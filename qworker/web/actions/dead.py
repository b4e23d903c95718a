"""Redrive and drop dead letters: one by its entry, or those that fit a filter, in the background."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from qworker.client.dead import pages as dead_pages
from qworker.client.dead.throttle import rate_per_s
from qworker.errors import InvalidBodyError, InvalidOptionError
from qworker.formats import count, safe, span
from qworker.monitor.jobs import BulkChange
from qworker.web.access import DESTROY, OPERATE
from qworker.web.actions.action import Action, Doing, Done
from qworker.web.pages.dead import RATES, filter_of, letter_at, why_not_edited, written
from qworker.wire.codec import decode

if TYPE_CHECKING:
    from qworker.client.dead.pages import Act

__all__ = ["DEAD_ACTIONS"]

_JOB: Final = re.compile(r"[A-Za-z0-9_-]{16}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,15}", re.ASCII)


def _redrive(doing: Doing) -> Done:
    entry, rate = doing.form.get("entry", ""), doing.form.get("rate", "")
    if rate not in RATES:
        raise InvalidOptionError("rate", f"{ascii(rate)[:40]} is not offered", "use the form")
    if entry:
        number = len(doing.namespace.queues.get(doing.queue).redrive(entry))
        return _one(doing, entry, number, "redriven")
    return _start(doing, "redrive", dead_pages.redrive, rate_per_s(rate, "rate") if rate else None)


def _drop(doing: Doing) -> Done:
    entry = doing.form.get("entry", "")
    if not entry:
        return _start(doing, "drop", dead_pages.drop, None)
    if letter_at(doing.namespace, doing.queue, entry) is None:
        return _one(doing, entry, 0, "dropped")
    job = BulkChange(
        secrets.token_urlsafe(12), doing.access.user, "drop", doing.queue, f"entry {entry}", 1, None,
        entry,
    )  # fmt: skip
    begin = doing.jobs.prepare_drop(job)
    return Done(_undoable(doing), f"/queues/{quote(doing.queue)}/dead", job.filter, begin)


def _edit(doing: Doing) -> Done:
    entry, queue = doing.form.get("entry", ""), doing.namespace.queues.get(doing.queue)
    try:
        body = decode(doing.form.get("body", "").encode())
    except InvalidBodyError as error:
        raise error.at("body") from error
    letter = letter_at(doing.namespace, doing.queue, entry)
    if letter is not None and (problem := why_not_edited(letter, doing.redact)):
        raise InvalidOptionError("entry", f"{entry} cannot be edited here", problem)
    edited = queue.edit_dead(entry, body)
    path = f"/queues/{quote(doing.queue)}/dead"
    if doing.form.get("redrive") == "1" and queue.redrive(edited):
        return Done("edited and redriven", path, f"entry {entry}")
    return Done(f"edited: its entry is {edited} now", f"{path}/{edited}", f"entry {entry}")


def _one(doing: Doing, entry: str, number: int, done: str) -> Done:
    outcome = f"{count(number, 'dead letter')} {done}"
    if not number:
        outcome += ": it is foreign, or was redriven or dropped before"
    return Done(outcome, f"/queues/{quote(doing.queue)}/dead", f"entry {entry}")


def _start(doing: Doing, verb: str, change: Act, per_s: float | None) -> Done:
    """Start a change of the dead letters that the question has counted, and of no others."""
    form = doing.form
    numbers = [form.get(name, "") for name in ("at_ms", "shown")]
    if not all(_NUMBER.fullmatch(number) for number in numbers):
        raise InvalidOptionError("form", "is incomplete", "use the question's own form")
    if _JOB.fullmatch(form.get("job", "")) is None:
        raise InvalidOptionError("job", "is not from a question", "use the question's own form")
    at_ms, shown = map(int, numbers)
    wanted, target = filter_of(form), written(form)
    job = BulkChange(form["job"], doing.access.user, verb, doing.queue, target, shown, per_s)
    begin = doing.jobs.prepare(job, change, wanted, at_ms)
    rate = f" at {per_s:g}/s" if per_s else ""
    begun = _undoable(doing) if verb == "drop" else f"started{rate}"
    outcome = f"{begun}: the question had counted {count(shown, 'dead letter')}"
    return Done(outcome, f"/queues/{quote(doing.queue)}/dead", target, begin)


def _undoable(doing: Doing) -> str:
    return f"begins in {span(doing.jobs.undo_s)}, unless it is undone"


def _stop(doing: Doing) -> Done:
    job = doing.jobs.stop(doing.queue, doing.form.get("job", ""))
    if job is None:
        raise InvalidOptionError("job", "no such change runs here", "it may have ended")
    outcome = safe(job.outcome) if job.ended else f"asked to stop: {safe(job.outcome)} so far"
    return Done(outcome, f"/queues/{quote(doing.queue)}/dead", job.filter)


DEAD_ACTIONS: Final = {
    "/queues/{queue}/dead/redrive": Action("dead redrive", OPERATE, _redrive),
    "/queues/{queue}/dead/drop": Action("dead drop", DESTROY, _drop),
    "/queues/{queue}/dead/edit": Action("dead edit", DESTROY, _edit),
    "/queues/{queue}/dead/stop": Action("dead stop", OPERATE, _stop),
}
