"""Signal, cancel and redrive runs."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from qworker.errors import InvalidBodyError, InvalidOptionError
from qworker.web.access import DESTROY, OPERATE
from qworker.web.actions.action import Action, Doing, Done
from qworker.wire.codec import decode
from qworker.wire.names import check_message_id

__all__ = ["RUN_ACTIONS"]

_LONGEST: Final = 200


def _signal(doing: Doing) -> Done:
    name = doing.form.get("name", "").strip()
    if not name or len(name) > _LONGEST:
        raise InvalidOptionError(
            "signal", f"{ascii(name)[:40]} is not a name", "1 to 200 characters"
        )
    try:
        value = decode(doing.form.get("value", "").encode())
    except InvalidBodyError as error:
        raise error.at("value") from error
    queue = doing.namespace.queues.get(doing.queue)
    queue.signal(_run(doing), name, value, replace="replace" in doing.form)
    return _done(doing, f"given the signal {name}")


def _cancel(doing: Doing) -> Done:
    answer = doing.namespace.queues.get(doing.queue).cancel(_run(doing))
    if answer.too_late:
        raise InvalidOptionError("run", "was not cancelled", "it has ended, or is dead")
    text = "cancelled" if answer == "cancelled" else "its handler is asked to stop"
    return _done(doing, text)


def _redrive(doing: Doing) -> Done:
    if not doing.namespace.queues.get(doing.queue).redrive(ids={_run(doing)}):
        raise InvalidOptionError("run", "is not dead", "reload the page")
    return _done(doing, "redriven: it continues after its last step")


def _run(doing: Doing) -> str:
    return check_message_id(doing.names["message"])


def _done(doing: Doing, outcome: str) -> Done:
    path = f"/runs/{quote(doing.queue)}/{quote(doing.names['message'])}"
    return Done(outcome, path, doing.names["message"])


_PATH: Final = "/runs/{queue}/{message}"
RUN_ACTIONS: Final = {
    f"{_PATH}/signal": Action("workflow signal", OPERATE, _signal),
    f"{_PATH}/cancel": Action("workflow cancel", DESTROY, _cancel),
    f"{_PATH}/redrive": Action("workflow redrive", OPERATE, _redrive),
}
