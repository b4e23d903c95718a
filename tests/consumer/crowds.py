"""A crowd of queues, and a worker at some distance from their server.

with crowd(server, queues=40, rtt_ms=1) as crowd:
    with crowd.worker(concurrency=3):
        crowd.send_to_each()
        crowd.until_started()
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from qworker import QWorker, SyncRun
from qworker.wire.keys import QueueKeys
from tests.consumer.driving import Child, running, until
from tests.relay import Relay
from tests.servers import Server
from tests.timing import Watch

__all__ = ["KINDS", "Crowd", "crowd"]


#: Options of messages by kind; a `run` is a workflow, `limited` groups run one message at a time.
KINDS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "prior": {"priority": 7},
    "grouped": {"group": "g/a"},
    "ordered": {"group": "g/a", "ordered": True},
    "limited": {"group": "g/a"},
    "run": {},
}


class Crowd:
    """Queues `q0` …, each with a task of its name. `started` lists the queues whose handlers began, in that order.

    The kinds of messages take turns among the queues.
    """

    def __init__(
        self,
        near: QWorker,
        far: QWorker,
        queues: int,
        server: Server,
        rtt_ms: float,
        kinds: Sequence[str],
    ):
        self.near, self.far, self.rtt_s = near, far, rtt_ms / 1000
        self.names = [f"q{number}" for number in range(queues)]
        self.started: list[str] = []
        self._server = server
        self._tasks: list[Any] = []
        for number, name in enumerate(self.names):
            kind = kinds[number % len(kinds)]
            if kind == "run":
                far.workflow(name=name, queue=name)(self._run(name))
                self._tasks.append(near.workflow(name=name, queue=name)(_no_run))
                continue
            far.task(name=name, queue=name)(self._handler(name))
            task = near.task(name=name, queue=name)(_nothing)
            self._tasks.append(task.options(**KINDS[kind]))
            if kind == "limited":
                near.queue(name).set_limit("g/*", concurrency=1)

    @contextmanager
    def worker(self, **config: Any) -> Iterator[Child]:
        """Run a worker of all queues, idle when the block begins."""
        with running(self.far, **config) as child:
            until(lambda: child.waiting)
            yield child

    def send_to(self, *numbers: int) -> None:
        """Send a message to each of these queues."""
        for number in numbers:
            self._tasks[number].send()

    def served_s(self, *numbers: int) -> float:
        """Send to these queues and wait for all starts; returns the seconds until each queue had one."""
        self.started.clear()
        self.send_to(*numbers)
        passed_s = self.until_started([self.names[number] for number in numbers])
        until(lambda: len(self.started) >= len(numbers), what="the other starts")
        return passed_s

    def send_to_each(self) -> None:
        """Send a message to each queue."""
        self.send_to(*range(len(self.names)))

    def push_plainly(self, number: int) -> None:
        """Push to a queue as another program would, without a bell."""
        keys = QueueKeys(self.near.namespace, self.names[number])
        self._server.redis().rpush(keys.ready[0], f'{{"task": "{self.names[number]}"}}')

    def break_queue(self, number: int, part: str) -> None:
        """Let a key of a queue hold another type."""
        key = f"{self.near.namespace}:{{{self.names[number]}}}:{part}"
        with self._server.redis() as redis:
            redis.delete(key)
            redis.set(key, "not ours")

    def until_started(self, names: Sequence[str] | None = None) -> float:
        """Wait until a handler of each of these queues (all) has begun; returns the seconds, lost cores left out."""
        wanted = set(self.names if names is None else names)
        watch = Watch(os.getpid(), self._server.pid)
        until(lambda: wanted <= set(self.started), what=f"a start of each of {len(wanted)} queues")
        return watch.passed_s()

    def commands_per_s(self, seconds: float) -> float:
        """What the server has to do now, but for what it is asked by this."""
        with self._server.redis() as redis:
            begun, before = time.monotonic(), redis.info("stats")["total_commands_processed"]
            time.sleep(seconds)
            after: int = redis.info("stats")["total_commands_processed"]
        return (after - before) / (time.monotonic() - begun)

    def _handler(self, name: str) -> Callable[[], None]:
        return lambda: self.started.append(name)

    def _run(self, name: str) -> Callable[[SyncRun], None]:
        def flow(run: SyncRun) -> None:
            self.started.append(name)

        return flow


def _nothing() -> None:
    """Stand for a task where it is only sent to."""


def _no_run(run: SyncRun) -> None:
    """Stand for a workflow where it is only started."""


@contextmanager
def crowd(
    server: Server,
    namespace: str,
    *,
    queues: int,
    rtt_ms: float = 0.0,
    kinds: Sequence[str] = ("plain",),
) -> Iterator[Crowd]:
    """Make this many queues, and a worker's app that has its server so far away."""
    with ExitStack() as stack:
        url = server.url
        if rtt_ms:
            url = stack.enter_context(Relay(server.url, rtt_ms=rtt_ms)).url
        near, far = QWorker(namespace, url=server.url), QWorker(namespace, url=url)
        stack.callback(near.close)
        stack.callback(far.close)
        yield Crowd(near, far, queues, server, rtt_ms, kinds)
