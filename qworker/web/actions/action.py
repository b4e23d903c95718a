"""An action of an operator: a verb of the command line, its right, and its entry in the audit trail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from qworker.client.namespace.audit import Deed, record_deed
from qworker.errors import InvalidOptionError, QworkerError
from qworker.wire.names import check_queue

if TYPE_CHECKING:
    from qworker.monitor.jobs import Jobs
    from qworker.monitor.namespace import Namespace
    from qworker.monitor.readings import Readings
    from qworker.web.access import Access
    from qworker.web.body import Redact

__all__ = ["Action", "Doing", "Done", "act", "record"]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Doing:
    """A request for an action: who asks, what the path names, with which form."""

    namespace: Namespace
    jobs: Jobs
    readings: Readings
    access: Access
    names: Mapping[str, str]
    form: Mapping[str, str]
    redact: Redact | None = None

    @property
    def queue(self) -> str:
        """The queue that the path names; '' if it names none."""
        return self.names.get("queue", "")

    @property
    def subject(self) -> str:
        """The subject of the action: the queue, and the item that the path or the form names in it."""
        within = self.names.get("message") or self.form.get("name", "")
        return f"{self.queue or self.form.get('queue', '')} {within}".strip()


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of an action, and the path of the page that shows it.

    `target` stands in the audit trail in place of the subject. `begin` starts background work once the entry of the
    trail is written.
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
    """Do it, and record it; returns the entry of the audit trail. Records a failure too, and raises it."""
    user, namespace, queue = doing.access.user, doing.namespace, doing.queue
    if queue:
        check_queue(queue)
    try:
        if queue and not namespace.queues.look_up([queue]):
            raise InvalidOptionError(
                "queue", f"{queue!r} does not exist", "it may have been removed"
            )
        done = action.run(doing)
    except QworkerError as error:
        _log.warning("operator_failed", user=user, verb=action.verb, target=doing.subject)
        record(namespace, Deed(user, action.verb, doing.subject, f"failed: {error}"))
        raise
    finally:
        doing.readings.forget()
    _log.info("operator_acted", user=user, verb=action.verb, target=doing.subject)
    target = f"{queue} {done.target}".strip() if done.target else doing.subject
    entry = record(namespace, Deed(user, action.verb, target, done.outcome))
    if done.begin is not None:
        done.begin()
    return entry, done


def record(namespace: Namespace, deed: Deed) -> str:
    """Write an entry of the audit trail; '' if that fails."""
    try:
        return record_deed(namespace.client.execute, namespace.namespace, deed)
    except QworkerError as error:
        # The change is done, and the log has it.
        _log.error(
            "audit_failed", user=deed.user, verb=deed.verb, target=deed.target, error=str(error)
        )
        return ""
