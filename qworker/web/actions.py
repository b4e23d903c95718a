"""What operators do: the functions that the command line calls, each recorded in the audit trail."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import structlog

from qworker.client.dead import pages as dead_pages
from qworker.client.dead.throttle import rate_per_s
from qworker.client.manage.pauses import PAUSES, change_pauses
from qworker.client.namespace.audit import Deed, record_deed
from qworker.errors import InvalidOptionError, QworkerError
from qworker.formats import count, safe
from qworker.monitor.jobs import Job
from qworker.web.access import DESTROY, OPERATE
from qworker.web.pages.dead import RATES, filter_of, written
from qworker.wire.names import check_queue

if TYPE_CHECKING:
    from qworker.client.dead.pages import Act
    from qworker.monitor.jobs import Jobs
    from qworker.monitor.namespace import Namespace
    from qworker.web.access import Access

__all__ = ["ACTIONS", "Action", "Doing", "Done", "act", "record"]

_log = structlog.get_logger(__name__)
_DIRECTIONS: Final = {"in": {"in"}, "out": {"out"}, "all": {"in", "out"}}
_JOB: Final = re.compile(r"[A-Za-z0-9_-]{16}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,15}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Doing:
    """A request for an action: who asks, for which queue, with which form."""

    namespace: Namespace
    jobs: Jobs
    access: Access
    queue: str
    form: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Done:
    """What came of an action, to what it was done beside the queue, and the page that shows it.

    `begin` starts what goes on in the background, when the entry of the audit trail is written.
    """

    outcome: str
    path: str
    target: str = ""
    begin: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """An action: its verb as on the command line, the right that it needs, and what does it."""

    verb: str
    right: str
    run: Callable[[Doing], Done]


def act(action: Action, doing: Doing) -> tuple[str, Done]:
    """Do it, and record it; returns the entry of the audit trail. What fails is recorded too, and raised."""
    check_queue(doing.queue)
    user, namespace = doing.access.user, doing.namespace
    try:
        if not namespace.queues.look_up([doing.queue]):
            raise InvalidOptionError(
                "queue", f"no such queue: {doing.queue!r}", "it may have been removed"
            )
        done = action.run(doing)
    except QworkerError as error:
        _log.warning("operator_failed", user=user, verb=action.verb, queue=doing.queue)
        record(namespace, Deed(user, action.verb, doing.queue, f"failed: {error}"))
        raise
    _log.info("operator_acted", user=user, verb=action.verb, queue=doing.queue)
    target = f"{doing.queue} {done.target}".rstrip()
    entry = record(namespace, Deed(user, action.verb, target, done.outcome))
    if done.begin is not None:
        done.begin()
    return entry, done


def record(namespace: Namespace, deed: Deed) -> str:
    """Write an entry of the audit trail; '' if that fails."""
    try:
        return record_deed(namespace.client.execute, namespace.namespace, deed)
    except QworkerError as error:
        # What was done is done: the log has it.
        _log.error(
            "audit_failed", user=deed.user, verb=deed.verb, target=deed.target, error=str(error)
        )
        return ""


def _pause(doing: Doing) -> Done:
    return _change(doing, close=_direction(doing.form))


def _resume(doing: Doing) -> Done:
    return _change(doing, reopen=_direction(doing.form))


def _change(
    doing: Doing,
    *,
    close: frozenset[str] = frozenset(),
    reopen: frozenset[str] = frozenset(),
) -> Done:
    namespace = doing.namespace
    ref = namespace.queues.ref(doing.queue)
    inspection = namespace.client.run(change_pauses(ref, close=close, reopen=reopen))
    outcome = PAUSES.get(inspection.paused, inspection.paused)
    return Done(outcome, f"/queues/{quote(doing.queue)}")


def _direction(form: Mapping[str, str]) -> frozenset[str]:
    given = form.get("direction", "")
    if given not in _DIRECTIONS:
        raise InvalidOptionError(
            "direction", f"{ascii(given)[:40]} is not a direction", "one of in, out, all"
        )
    return frozenset(_DIRECTIONS[given])


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
    if entry:
        number = doing.namespace.queues.get(doing.queue).drop_dead(entry)
        return _one(doing, entry, number, "dropped")
    return _start(doing, "drop", dead_pages.drop, None)


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
    job = Job(form["job"], doing.access.user, verb, doing.queue, target, shown, per_s)
    begin = doing.jobs.prepare(job, change, wanted, at_ms)
    rate = f" at {per_s:g}/s" if per_s else ""
    outcome = f"started{rate}: the question had counted {count(shown, 'dead letter')}"
    return Done(outcome, f"/queues/{quote(doing.queue)}/dead", target, begin)


def _stop(doing: Doing) -> Done:
    job = doing.jobs.stop(doing.queue, doing.form.get("job", ""))
    if job is None:
        raise InvalidOptionError("job", "no such change runs here", "it may have ended")
    outcome = f"asked to stop: {safe(job.outcome)} so far"
    return Done(outcome, f"/queues/{quote(doing.queue)}/dead", job.filter)


#: By the rest of its path, behind that of the queue.
ACTIONS: Final = {
    "pause": Action("queue pause", OPERATE, _pause),
    "resume": Action("queue resume", OPERATE, _resume),
    "dead/redrive": Action("dead redrive", OPERATE, _redrive),
    "dead/drop": Action("dead drop", DESTROY, _drop),
    "dead/stop": Action("dead stop", OPERATE, _stop),
}
