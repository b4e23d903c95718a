"""End groups of calls without what follows them; their calls run on, or are cancelled."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from qworker.errors import InvalidOptionError
from qworker.formats import count
from qworker.web.access import DESTROY
from qworker.web.actions.action import Action, Doing, Done
from qworker.wire.names import check_message_id

__all__ = ["CALL_ACTIONS"]


def _abandon(doing: Doing) -> Done:
    group_id = check_message_id(doing.names["message"])
    if not doing.namespace.queues.get(doing.queue).abandon_calls(group_id):
        raise InvalidOptionError("group", "was not ended", "it has ended, or its id is wrong")
    return Done(
        "ended; its calls continue to run",
        f"/calls/{quote(doing.queue)}/{quote(group_id)}",
    )


def _cancel(doing: Doing) -> Done:
    group_id = check_message_id(doing.names["message"])
    done = doing.namespace.queues.get(doing.queue).cancel_calls(group_id)
    if done is None:
        raise InvalidOptionError("group", "was not cancelled", "it has ended, or its id is wrong")
    return Done(
        f"cancelled: {count(done.cancelled, 'message')} waited, {done.cancelling:,} run and are asked to stop, "
        f"{count(done.too_late, 'call')} had ended",
        f"/calls/{quote(doing.queue)}/{quote(group_id)}",
    )


CALL_ACTIONS: Final = {
    "/calls/{queue}/{message}/cancel": Action("calls cancel", DESTROY, _cancel),
    "/calls/{queue}/{message}/abandon": Action("calls abandon", DESTROY, _abandon),
}
