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
from tests.topologies.servers import CLUSTERED, client_of

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


#: Reads each of its keys whole: {type, contents}, or nil. One command, where clients would need two trips.
SNAPSHOT = """
local reads = {list = {'LRANGE', 0, -1}, hash = {'HGETALL'}, zset = {'ZRANGE', 0, -1, 'WITHSCORES'},
               stream = {'XRANGE', '-', '+'}, string = {'GET'}}
local found = {}
for i, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  local read = reads[kind]
  found[i] = kind ~= 'none' and {kind, read and redis.call(read[1], key, unpack(read, 2))}
end
return found
"""
#: Finds the keys of a pattern, in the slot of its key, and reads them; the keys of all tests of a process are there.
_ALL = f"""
local keys, cursor = {{}}, '0'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 1000000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do keys[#keys + 1] = key end
until cursor == '0'
local KEYS = keys
local function read()
{SNAPSHOT}
end
return {{keys, read()}}
"""


class Connections:
    """A client and a plain one, which the drives of many tests may share: to connect both takes 2 ms of CPU."""

    def __init__(self, url: str) -> None:
        self.client = Client(ConnectionFactory(url))
        self.redis = client_of(url)

    def close(self) -> None:
        """Close both."""
        self.client.close()
        self.redis.close()


class Drive:
    """One queue of its own, whose meta.test is set: every call names its time.

    `shared`: connections that stay open when it closes; None for its own.
    """

    def __init__(
        self, url: str, namespace: str, queue: str, *, shared: Connections | None = None
    ) -> None:
        self.namespace = namespace
        self.keys = QueueKeys(namespace, queue)
        self.base = self.keys.meta.removesuffix("meta")
        self._own = Connections(url) if shared is None else None
        connections = shared or self._own
        assert connections is not None
        self.client, self.redis = connections.client, connections.redis
        self.redis.hset(self.keys.meta, "test", "1")

    def close(self) -> None:
        """Close the connections of its own."""
        if self._own is not None:
            self._own.close()

    def info(self, section: str) -> dict[str, Any]:
        """Read a section of INFO from the server, in a Cluster from the node of the queue."""
        found: dict[str, Any] = self._node().info(section)
        return found

    def reset_stats(self) -> None:
        """Let INFO count from 0 there."""
        self._node().config_resetstat()

    def _node(self) -> Any:
        if not CLUSTERED:
            return self.redis
        return self.redis.get_redis_connection(self.redis.get_node_from_key(self.keys.meta))

    def replied_bytes(self) -> int:
        """Return how many bytes that server has sent to clients; replicas get the bodies."""
        stats = self.info("stats")
        return int(stats["total_net_output_bytes"] - stats["total_net_repl_output_bytes"])

    # -- calls ---------------------------------------------------------------------------------

    def run(self, command: Command[Any]) -> Any:
        """Execute a command."""
        return self.client.execute(command, give_up_s=5)

    def call(self, script: str, keys: Sequence[str], *args: Word) -> Any:
        """Call a script with raw arguments; its raw reply, bytes as text."""
        return self.run(Command(load_script(script), tuple(keys), args, _as_text))

    def call_each(self, script: str, calls: Iterable[tuple[Sequence[str], Sequence[Word]]]) -> Any:
        """Call a script with keys and words after keys and words, in one trip; their raw replies."""
        made = [
            Command(load_script(script), tuple(keys), tuple(words), _as_text)
            for keys, words in calls
        ]
        return self.client.execute_each(made, give_up_s=5)

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
        caller: str = "",
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
                caller=caller,
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
        names, snapshot = self.redis.eval_ro(_ALL, 1, self.keys.meta, self.base + "*")
        table = self.table([name.decode() for name in names], snapshot)
        return {part: value for part, value in table.items() if not only or part in only}

    def read(self, keys: Iterable[str]) -> dict[str, Any]:
        """As `state`, of these keys alone: that takes no scan."""
        names = list(keys)
        return self.table(names, self.redis.eval_ro(SNAPSHOT, len(names), *names))

    def table(self, names: Sequence[str], snapshot: list[Any]) -> dict[str, Any]:
        """Make a table of the reply of `SNAPSHOT` for keys."""
        contents: dict[str, Any] = {}
        for name, found in zip(names, snapshot, strict=True):
            if found is None:
                continue
            kind, value = found[0].decode(), found[1]
            part = name.removeprefix(self.base)
            if part.startswith("lease:") and kind == "hash":
                value = [word for pair in held_items(value) for word in pair]
            value = _READERS[kind](value)
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


def _pairs(flat: list[bytes]) -> Iterator[tuple[Any, Any]]:
    return zip(map(_as_text, flat[::2]), map(_as_text, flat[1::2]), strict=True)


#: Type → how the contents of a key are made into plain values.
_READERS: dict[str, Callable[[Any], Any]] = {
    "list": lambda reply: _as_text(reply),
    "hash": lambda reply: dict(_pairs(reply)),
    "zset": lambda reply: {member: float(score) for member, score in _pairs(reply)},
    "stream": lambda reply: [dict(_pairs(fields)) for _, fields in reply],
    "string": lambda reply: _as_text(reply),
}


def _as_text(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "surrogateescape")
    if isinstance(reply, list):
        return [_as_text(item) for item in reply]
    return reply
