"""Requests of operators to this worker: read from its list, carried out once and answered.

    control = Control(client, namespace, name, {"stack": stack})
    control.check(now_ms)       # every two seconds, in the thread that speaks to the server

A verb is a function of the request's arguments and of `reply`, which it calls once: now, or later from the same thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from qworker.engine.note import keep_note
from qworker.engine.raw import raw
from qworker.errors import AccessDeniedError, InvalidError
from qworker.wire.control import KEPT_MS, Answer, ControlRequest, read_request, write
from qworker.wire.keys import answer_key, control_key

if TYPE_CHECKING:
    from qworker.client.execute.recurring import RecurringCalls
    from qworker.client.execute.sync import Client

__all__ = ["Control", "Reply", "Verb"]

_log = structlog.get_logger(__name__)

#: The latest requests, which are read each time.
_AT_ONCE: Final = 64
_GIVE_UP_S: Final = 2.0

#: Takes whether it was done, and the result as text and data.
Reply = Callable[..., None]
Verb = Callable[[Mapping[str, Any], Reply], None]


class Control:
    """Carries out requests to one worker. Not thread-safe."""

    def __init__(
        self,
        client: Client | RecurringCalls,
        namespace: str,
        worker: str,
        verbs: Mapping[str, Verb],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._worker = worker
        self._verbs = verbs
        self._key = control_key(namespace, worker)
        #: Requests carried out, and when they were sent: they stay in the list until it expires.
        self._done: dict[str, int] = {}
        #: The ACL of an older version does not allow reading the list; no worker fails for that.
        self._forbidden = False

    def check(self, now_ms: int) -> None:
        """Carry out new requests; `now_ms` by the server's clock. Raises `ServerError`."""
        if self._forbidden:
            return
        # Only read: the right to write to these lists is one to give orders to workers, and workers do not have it.
        read = raw("LRANGE", self._key, -_AT_ONCE, -1, decode=list)
        try:
            stored = self._client.execute(read, give_up_s=_GIVE_UP_S)
        except AccessDeniedError as error:
            self._forbidden = True
            _log.warning("control_forbidden", key=self._key, error=str(error))
            return
        self._done = {
            name: sent_ms for name, sent_ms in self._done.items() if now_ms - sent_ms <= KEPT_MS
        }
        for item in stored:
            request = read_request(item)
            if request is None or now_ms - request.sent_ms > KEPT_MS or request.id in self._done:
                continue
            self._done[request.id] = request.sent_ms
            self._carry_out(request)

    def _carry_out(self, request: ControlRequest) -> None:
        _log.info("control_requested", verb=request.verb, **_shown(request.arguments))
        reply = partial(self._answer, request)
        verb = self._verbs.get(request.verb)
        if verb is None:
            known = ", ".join(sorted(self._verbs))
            reply(False, f"this worker does not know {request.verb[:40]!r}, only {known}")
            return
        try:
            verb(request.arguments, reply)
        except InvalidError as error:
            reply(False, str(error))

    def _answer(self, request: ControlRequest, done: bool, text: str = "", **data: Any) -> None:
        key = answer_key(self._namespace, request.id)
        answer = write(Answer(self._worker, done, text, data))
        for command in (keep_note("RPUSH", key, answer), raw("PEXPIRE", key, KEPT_MS)):
            self._client.execute(command, give_up_s=_GIVE_UP_S)


def _shown(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The short arguments as fields of a log line."""
    return {
        f"asked_{name}": value
        for name, value in arguments.items()
        if isinstance(value, int | float | str) and len(str(value)) <= 200
    }
