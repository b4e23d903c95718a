"""Hold, enqueue, cancel and delete a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from qworker.errors import InvalidOptionError
from qworker.formats import safe
from qworker.monitor.stop import stop_handler
from qworker.web.access import DESTROY, OPERATE
from qworker.web.actions.action import Action, Doing, Done
from qworker.wire.names import check_message_id

if TYPE_CHECKING:
    from qworker.client.queue import Queue

__all__ = ["MESSAGE_ACTIONS"]

_ELSEWHERE: Final = "it is in another state, or has ended: reload the page"


def _hold(doing: Doing) -> Done:
    if not _queue(doing).hold(doing.names["message"]):
        raise InvalidOptionError("message", "was not held", _ELSEWHERE)
    return _done(doing, "held: it waits until it is enqueued", "held")


def _enqueue(doing: Doing) -> Done:
    if not _queue(doing).enqueue(doing.names["message"]):
        raise InvalidOptionError("message", "was not enqueued", _ELSEWHERE)
    return _done(doing, "enqueued: it is the last of the ready messages", "ready")


def _delete(doing: Doing) -> Done:
    stored = _queue(doing).delete(doing.names["message"])
    if stored is None:
        raise InvalidOptionError("message", "was not found", _ELSEWHERE)
    marked = ": an ack still ends it, and it is dropped if it is requeued" if stored.marked else ""
    return Done(f"deleted, {stored.state}{marked}", f"/queues/{quote(doing.queue)}/messages")


def _cancel(doing: Doing) -> Done:
    queue, message_id, how = _queue(doing), doing.names["message"], doing.form.get("how", "")
    if how not in ("", "running", "kill"):
        raise InvalidOptionError("how", f"{ascii(how)[:40]} is not offered", "use the form")
    listing = f"/queues/{quote(doing.queue)}/messages"
    stored = queue.show(message_id) if how else None
    if stored is not None and stored.state == "dead":
        raise InvalidOptionError("message", "is a dead letter", "drop it there")
    answer = queue.cancel(message_id)
    if answer.too_late:
        raise InvalidOptionError(
            "message", "was not cancelled", "it has ended, or is a dead letter"
        )
    if stored is not None and stored.receipt is not None:
        stopped = stop_handler(doing.namespace, queue.ref, stored, kill=how == "kill")
        outcome = f"cancelled: {safe(stopped.text)}"
        # Where it was stopped, it is gone in a moment.
        return Done(outcome, listing) if stopped.done else _done(doing, outcome, "unacked")
    text = "cancelled: it will not run" if answer == "cancelled" else "its handler is asked to stop"
    if answer == "cancelled":
        return Done(text, listing)
    return _done(doing, text, "unacked")


def _queue(doing: Doing) -> Queue:
    check_message_id(doing.names["message"])
    return doing.namespace.queues.get(doing.queue)


def _done(doing: Doing, outcome: str, state: str) -> Done:
    path = f"/queues/{quote(doing.queue)}/messages/{quote(doing.names['message'])}"
    return Done(outcome, f"{path}?state={state}")


_PATH: Final = "/queues/{queue}/messages/{message}"
MESSAGE_ACTIONS: Final = {
    f"{_PATH}/hold": Action("message hold", OPERATE, _hold),
    f"{_PATH}/enqueue": Action("message enqueue", OPERATE, _enqueue),
    f"{_PATH}/cancel": Action("message cancel", DESTROY, _cancel),
    f"{_PATH}/delete": Action("message delete", DESTROY, _delete),
}
