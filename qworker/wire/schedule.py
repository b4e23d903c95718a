"""A schedule as it is stored in Redis, and as a child reports it to its supervisor."""

from __future__ import annotations

from typing import Final, Self

import msgspec

from qworker.errors import InvalidOptionError
from qworker.wire.envelope import tail
from qworker.wire.names import check_task

__all__ = ["FIRED", "PAUSED", "StoredSchedule"]

#: Fields beside a schedule in its HASH: its last slot, ms, and since when it is paused, ms.
FIRED: Final = ":fired"
PAUSED: Final = ":paused"

_REGISTER: Final = "start a worker of its app, which writes it again"


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to send when, and for which app; its name is the field of the HASH that holds it.

    `app` is "" for a schedule that was added at run time. `spec` is text for `qworker.app.schedule.parse_schedule`;
    `body` is that of the message, `group` the stored name of its group. `ttl_ms` None takes the queue's, 0 is none;
    `max_receives` None takes the queue's. `signature` is that of all its messages (`Keyring.sign_schedule`): the daemon
    that fires them holds no key.
    """

    app: str
    spec: str
    task: str
    queue: str
    body: str
    priority: int = 0
    ttl_ms: int | None = None
    max_receives: int | None = None
    group: str = ""
    signature: str = ""

    @staticmethod
    def key(name: str) -> str:
        """The unique key that messages of a schedule hold until they end, if they must not overlap."""
        return f"schedule:{name}"

    @classmethod
    def parse(cls, value: bytes) -> Self:
        """Read the JSON of a schedule, which others may have written. Raises `InvalidError`."""
        try:
            stored = msgspec.json.decode(value, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidOptionError("schedule", f"cannot be read ({error})", _REGISTER) from error
        # It becomes the label of a metric and part of the message.
        check_task(stored.task)
        return stored

    def encode(self) -> bytes:
        """Write it as JSON."""
        return msgspec.json.encode(self)

    @property
    def times(self) -> str:
        """The part of `spec` that says when; the policy for missed slots follows it."""
        return self.spec.rpartition(" missed=")[0]

    def tail(self, name: str, *, alone: bool = False) -> bytes:
        """Write the envelope of its messages from the flags on; `name` is the schedule's.

        `alone`: the message holds the schedule's unique key.
        """
        flags: dict[str, str] = {}
        if self.signature:
            flags |= {"n": name, "s": self.signature}
        if alone:
            flags["u"] = self.key(name)
        if self.group:
            flags["g"] = self.group
        if self.max_receives is not None:
            flags["m"] = str(self.max_receives)
        if self.priority:
            flags["p"] = str(self.priority)
        return tail(self.body.encode(), flags)
