"""Driving the scripts of one queue at given times, and looking at all that they leave behind.

`Drive.state()` is the queue as a plain table, key part → value, so that a test can say what it expects literally:
lists of strings, hashes and sorted sets as dicts, streams as lists of dicts without their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from qworker.client.execute.sync import Client
from qworker.engine.arguments import standard_keys
from qworker.engine.command import Command, Word
from qworker.engine.receive import Batch, Suspects, settle_receive
from qworker.engine.scripts import load_script
from qworker.engine.send import NewMessage, Sent, send
from qworker.engine.settle import Outcomes, settle
from qworker.store.connections import ConnectionFactory
from qworker.wire.envelope import tail
from qworker.wire.keys import QueueKeys
from qworker.wire.leases import held_items
from tests import servers
from tests.topologies.servers import client_of

#: Where the time of most tests begins, in ms.
NOW = 1_000_000

#: What no argument that stands for a number may be.
BAD_NUMBERS = ["nan", "inf", "-inf", "-1", "1e99", "1.5", "", "x"]

READY_PARTS = ["ready", *(f"ready:{level}" for level in range(1, 10))]
#: Keys that every script over the standard keys may write, with levels 0 and 5 in use.
STANDARD_PARTS = [
    "ready",
    "ready:5",
    "suspect",
    "delayed",
    "unacked",
    "wake",
    "dead",
    "meta",
    "stats",
    "unique",
    "cancelled",
    "journal",
]


class Drive:
    """One queue of its own, whose meta.test is set: every call names its time."""

    def __init__(self, url: str, namespace: str, queue: str) -> None:
        self.namespace = namespace
        self.keys = QueueKeys(namespace, queue)
        self.base = self.keys.meta.removesuffix("meta")
        self.client = Client(ConnectionFactory(url))
        self.redis = client_of(url)
        self.redis.hset(self.keys.meta, "test", "1")

    def close(self) -> None:
        """Close both clients."""
        self.client.close()
        self.redis.close()

    # -- calls ---------------------------------------------------------------------------------

    def run(self, command: Command[Any]) -> Any:
        """Execute a command."""
        return self.client.execute(command, give_up_s=5)

    def call(self, script: str, keys: Sequence[str], *args: Word) -> Any:
        """Call a script with raw arguments; its raw reply, bytes as text."""
        return self.run(Command(load_script(script), tuple(keys), args, _as_text))

    def send(
        self,
        *ids: str,
        at: int = NOW,
        lane: str = "",
        sequence: int = 0,
        flags: dict[str, str] | None = None,
        body: Callable[[str], bytes] = str.encode,
        **options: Any,
    ) -> Sent:
        """Send messages of these ids; the body of each is its id unless `body` says otherwise."""
        messages = [NewMessage(message_id, tail(body(message_id), flags)) for message_id in ids]
        command = send(self.keys, messages, lane=lane, sequence=sequence, now_ms=at, **options)
        return self.run(command)

    def receive(
        self,
        lease: str,
        count: int = 100,
        *outcomes: Outcomes,
        at: int = NOW,
        visibility_ms: int | None = 30_000,
        suspects: Suspects = Suspects.IF_NOTHING_ELSE,
        resume: bool = False,
        who: str = "",
    ) -> Batch:
        """Settle `outcomes` and receive into `lease`."""
        return self.run(
            settle_receive(
                self.keys,
                lease,
                count,
                outcomes=outcomes,
                visibility_ms=visibility_ms,
                suspects=suspects,
                who=who,
                now_ms=at,
                resume=resume,
            )
        )

    def settle(self, *outcomes: Outcomes, at: int = NOW) -> Any:
        """Settle `outcomes` alone."""
        return self.run(settle(self.keys, outcomes, now_ms=at))

    def standard_keys(self, *leases: str) -> tuple[str, ...]:
        """The keys that most scripts declare."""
        return standard_keys(self.keys, *leases)

    def sending_keys(self, priority: int = 0) -> tuple[str, ...]:
        """The keys that send declares."""
        return tuple(
            self.base + part
            for part in (
                READY_PARTS[priority],
                "delayed",
                "wake",
                "meta",
                "stats",
                "producers",
                "unique",
                "journal",
            )
        )

    # -- looking -------------------------------------------------------------------------------

    def state(self, *only: str) -> dict[str, Any]:
        """Every key of the queue as part → value; of the parts `only`, where they exist, if given.

        The field meta.test is left out, and meta where nothing else is in it. A lease is index → item, whatever its
        shape.
        """
        # The keys of all tests of this process are there: one long look takes less time than many short ones.
        found = self.redis.scan_iter(match=self.base + "*", count=1_000_000)
        names = [raw.decode() for raw in found]
        return self.read(name for name in names if not only or name.removeprefix(self.base) in only)

    def read(self, keys: Iterable[str]) -> dict[str, Any]:
        """As `state`, of these keys alone: that takes no scan."""
        names = list(keys)
        pipe = self.redis.pipeline(transaction=False)
        for name in names:
            pipe.type(name)
        types = [kind.decode() for kind in pipe.execute()]
        there = [(name, kind) for name, kind in zip(names, types, strict=True) if kind != "none"]
        for name, kind in there:
            _READERS[kind][0](pipe, name)
        contents: dict[str, Any] = {}
        for (name, kind), reply in zip(there, pipe.execute(), strict=True):
            part = name.removeprefix(self.base)
            if part.startswith("lease:") and kind == "hash":
                reply = _held(reply)
            value = _READERS[kind][1](reply)
            if part == "meta" and isinstance(value, dict):
                value.pop("test", None)
            if value or part != "meta":
                contents[part] = value
        return contents

    def held(self, key: str | bytes) -> dict[bytes, bytes]:
        """Index → item of a lease, whatever its shape."""
        return _held(self.redis.hgetall(key))

    def stats(self, *names: str) -> dict[str, int]:
        """The counters as numbers, without lanes; only those named, if any, where they exist."""
        raw = self.state("stats").get("stats", {})
        return {
            name: int(value)
            for name, value in raw.items()
            if (not names or name in names) and not name.startswith("lane:")
        }


@contextmanager
def guarded() -> Iterator[Drive]:
    """A queue on its own server, driven by a user who may do anything until `deny`; `drive.redis` always may."""
    with servers.start("valkey") as server, server.redis() as client:
        client.execute_command("ACL", "SETUSER", "u", "on", ">pw", "~*", "&*", "+@all")
        drive = Drive(f"unix://u:pw@{server.socket}", "t", "orders")
        drive.redis.close()
        drive.redis = server.redis()
        try:
            yield drive
        finally:
            drive.close()


def deny(drive: Drive, *commands: str) -> None:
    """Take the right to some commands from the user of `guarded`, in the middle of scripts as well."""
    drive.redis.execute_command("ACL", "SETUSER", "u", *(f"-{command}" for command in commands))


def own(
    message_id: str,
    sent_ms: int = NOW,
    receives: int = 0,
    nacks: int = 0,
    timeouts: int = 0,
    shared: int = 0,
    flags: str = "",
    body: str | None = None,
    ready_ms: int | None = None,
    first_ms: int | None = None,
    back_ms: int | None = None,
    since_ms: int | None = None,
) -> str:
    """An envelope as stored; its body is its id unless given. `flags` with a leading blank; `first_ms` (first received)
    and `ready_ms` end them. `back_ms`: given back to the head then, to the place of `since_ms` (None: `sent_ms`).
    """
    ready_ms = ready_ms if back_ms is None else back_ms
    text = message_id if body is None else body
    flags += "" if first_ms is None else f" f={first_ms}"
    flags += "" if ready_ms is None else f" t={ready_ms}"
    flags += "" if back_ms is None else f" o={sent_ms if since_ms is None else since_ms}"
    return f"q1 {message_id} {sent_ms} {receives} {nacks} {timeouts} {shared}{flags}\n{text}"


def _held(fields: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return dict(held_items([word for pair in fields.items() for word in pair]))


#: Type → how a key of it is read, and made into plain values.
_READERS: dict[str, tuple[Callable[[Any, str], Any], Callable[[Any], Any]]] = {
    "list": (lambda pipe, key: pipe.lrange(key, 0, -1), lambda reply: _as_text(reply)),
    "hash": (
        lambda pipe, key: pipe.hgetall(key),
        lambda reply: {_as_text(name): _as_text(value) for name, value in reply.items()},
    ),
    "zset": (
        lambda pipe, key: pipe.zrange(key, 0, -1, withscores=True),
        lambda reply: {_as_text(member): score for member, score in reply},
    ),
    "stream": (
        lambda pipe, key: pipe.xrange(key),
        lambda reply: [
            {_as_text(name): _as_text(value) for name, value in fields.items()}
            for _, fields in reply
        ],
    ),
    "string": (lambda pipe, key: pipe.get(key), lambda reply: _as_text(reply)),
}


def _as_text(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "surrogateescape")
    if isinstance(reply, list):
        return [_as_text(item) for item in reply]
    return reply
