"""A namespace whose keys others have written to, and everything of ours that meets them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from click.testing import CliRunner
from redis import Redis
from redis.exceptions import ResponseError

from qworker import QWorker
from qworker.cli.main import cli
from qworker.errors import InvalidError, RefusedError, ServerError
from qworker.wire.codec import encode_call
from qworker.wire.ids import new_id_prefix
from qworker.wire.keys import queues_key
from tests.fsck.damage import DAY_MS
from tests.fuzz.scribbles import TYPES, Words
from tests.lua.drive import Drive, own

#: How a message of ours is known wherever it stands.
MARKER = re.compile(rb"marker-(\w+)-")
READERS: dict[bytes, Callable[[Redis, bytes], Any]] = {
    b"string": lambda server, key: server.get(key),
    b"list": lambda server, key: server.lrange(key, 0, -1),
    b"zset": lambda server, key: server.zrange(key, 0, -1),
    b"hash": lambda server, key: server.hgetall(key),
    b"stream": lambda server, key: server.execute_command("XRANGE", key, "-", "+"),
}


def body(name: str) -> bytes:
    return encode_call("handle", [f"marker-{name}-"], {})


class World:
    """A namespace with a queue that holds some of everything, and a neighbour that is to continue whatever happens."""

    def __init__(self, url: str) -> None:
        self.namespace = f"f{new_id_prefix()}"
        #: Messages that the worker has handled, and those that were received by hand.
        self.handled: set[str] = set()
        self.seen: set[str] = set()
        self.app = QWorker(self.namespace, url=url)
        self.app.task(name="handle", queue="orders")(self._handle)
        self.app.task(name="beside", queue="healthy")(self._handle)
        self.drive = Drive(url, self.namespace, "orders")
        self.server = self.drive.redis
        self.healthy = self.app.queue("healthy")
        self._fill()

    def _handle(self, marker: str) -> None:
        self.handled |= self.names(marker.encode()) or {marker}

    @staticmethod
    def names(content: bytes) -> set[str]:
        """The messages of ours that stand in some bytes."""
        return {name.decode() for name in MARKER.findall(content)}

    def _fill(self) -> None:
        drive, keys = self.drive, self.drive.keys
        drive.redis.hdel(keys.meta, "test")
        drive.redis.hset(queues_key(self.namespace), mapping={"orders": 1, "healthy": 1})
        drive.redis.hset(keys.meta, "journal", "all")
        drive.send("a1", "a2", "a3", lane="lane", sequence=1, at=None, body=body)
        drive.receive("L-1", 2, at=None)
        drive.send("b1", "b2", at=None, body=body)
        drive.receive("L-3", 1, at=None)
        drive.send("c1", "c2", at=None, body=body)
        drive.send("p5", priority=5, at=None, body=body)
        drive.send("d1", "d2", delay_ms=DAY_MS, at=None, body=body)
        drive.redis.rpush(keys.suspect, own("s1", timeouts=1, body=body("s1").decode()))
        drive.redis.hincrby(keys.stats, "stored")
        drive.redis.xadd(
            keys.dead, {"envelope": own("e1", body=body("e1").decode()), "reason": "rejected"}
        )
        self.healthy.send_many([encode_call("beside", [name], {}) for name in ("h1", "h2")])
        self.healthy.send(encode_call("beside", ["h3"], {}), delay="1ms")

    def scribble(self, commands: list[Words]) -> None:
        """Write as another program does."""
        for verb, part, *rest in commands:
            place = str(part)
            key = (
                f"{self.namespace}:{place[1:]}"
                if place.startswith("@")
                else self.drive.base + place
            )
            with suppress(ResponseError):
                self.server.execute_command(verb, key, *rest)

    def markers(self) -> set[str]:
        """The messages of ours that stand anywhere in the namespace."""
        names: set[str] = set()
        for key in self.server.scan_iter(match=f"{self.namespace}:*", count=1_000_000):
            content = READERS[self.server.type(key)](self.server, key)
            names |= self.names(repr(content).encode())
        return names

    def broken(self) -> bool:
        """Whether a key holds another type than it must."""
        for part, kind in TYPES.items():
            key = f"{self.namespace}:{part[1:]}" if part.startswith("@") else self.drive.base + part
            if self.server.type(key).decode() not in (kind, "none"):
                return True
        return False

    @contextmanager
    def tolerated(self) -> Iterator[None]:
        """A refusal is an answer; an error of the server is one only where a key holds another type."""
        try:
            yield
        except (RefusedError, InvalidError):
            pass
        except ServerError:
            if not self.broken():
                raise

    def dead_letters(self) -> list[str]:
        """Entry ids of some dead letters."""
        try:
            return [
                entry.decode() for entry, _ in self.server.xrange(self.drive.keys.dead, count=3)
            ]
        except ResponseError:
            return []

    def run(self, *arguments: str) -> tuple[int, str]:
        """A command line; no error of it may be a bug's."""
        environ = {
            "QWORKER_URL": self.app.url,
            "QWORKER_NAMESPACE": self.namespace,
            "QWORKER_DEBUG": "1",
        }
        done = CliRunner().invoke(cli, list(arguments), env=environ)
        assert "is a bug of qworker" not in done.stderr, done.stderr
        assert done.exit_code in (0, 1, 2, 3), (arguments, done.exit_code, done.output)
        return done.exit_code, done.stdout

    def close(self) -> None:
        """Delete what is left, and every connection."""
        for key in self.server.scan_iter(match=f"{self.namespace}:*", count=1_000_000):
            self.server.delete(key)
        self.app.close()
        self.drive.close()
