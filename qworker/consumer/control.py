"""What operators ask of this worker: read from its list of requests, carried out once and answered.

    control = Control(client, namespace, name, {"stack": stack})
    control.look(now_ms)        # every two seconds, in the thread that speaks to the server

A verb is a function of the request's arguments and of `reply`, which it calls once: now, or later from the same thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from qworker.client.commands.command import Command
from qworker.errors import AccessDeniedError, InvalidError
from qworker.wire.control import KEPT_MS, Answer, Request, read_request, write
from qworker.wire.keys import answer_key, control_key

if TYPE_CHECKING:
    from qworker.client.sync import Client

__all__ = ["Control", "Reply", "Verb"]

_log = structlog.get_logger(__name__)

#: Requests that are looked at, the latest ones.
_AT_ONCE: Final = 64
_GIVE_UP_S: Final = 2.0

#: Says whether it was done, and in words and data what came of it.
Reply = Callable[..., None]
Verb = Callable[[Mapping[str, Any], Reply], None]


class Control:
    """Takes requests to one worker. Not thread-safe."""

    def __init__(
        self, client: Client, namespace: str, worker: str, verbs: Mapping[str, Verb]
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._worker = worker
        self._verbs = verbs
        self._key = control_key(namespace, worker)
        #: Requests that were carried out, and when they were sent: they stay in the list until it expires.
        self._done: dict[str, int] = {}
        #: Its user may not look there: an ACL of an older version. No worker fails for that.
        self._forbidden = False

    def look(self, now_ms: int) -> None:
        """Carry out what is asked for; `now_ms` by the server's clock. Raises `ServerError`."""
        if self._forbidden:
            return
        # Only read: whoever may write to these lists gives orders to workers, and workers are not to.
        words = ("LRANGE", self._key, -_AT_ONCE, -1)
        try:
            found = self._client.execute(Command(None, (), words, list), give_up_s=_GIVE_UP_S)
        except AccessDeniedError as error:
            self._forbidden = True
            _log.warning("control_forbidden", key=self._key, error=str(error))
            return
        self._done = {
            name: sent_ms for name, sent_ms in self._done.items() if now_ms - sent_ms <= KEPT_MS
        }
        for written in found:
            request = read_request(written)
            if request is None or now_ms - request.sent_ms > KEPT_MS or request.id in self._done:
                continue
            self._done[request.id] = request.sent_ms
            self._carry_out(request)

    def _carry_out(self, request: Request) -> None:
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

    def _answer(self, request: Request, done: bool, text: str = "", **data: Any) -> None:
        key = answer_key(self._namespace, request.id)
        answer = write(Answer(self._worker, done, text, data))
        for words in (("RPUSH", key, answer), ("PEXPIRE", key, KEPT_MS)):
            self._client.execute(Command(None, (), words, int), give_up_s=_GIVE_UP_S)


def _shown(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as fields of a log line, those that are short."""
    return {
        f"asked_{name}": value
        for name, value in arguments.items()
        if isinstance(value, int | float | str) and len(str(value)) <= 200
    }
