"""The check of `qworker doctor` for messages that wait for a worker that knows their task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qworker.formats import safe, span
from qworker.health.finding import Finding, Status, listed

if TYPE_CHECKING:
    from qworker.client.inspect.peek import Inspection
    from qworker.client.namespace.workers import Worker
    from qworker.health.access import NamespaceAccess
    from qworker.wire.envelope import Envelope

__all__ = ["check_unknown"]

#: Messages that are read per queue or shard: a sample of those that come back soonest.
_SAMPLE: Final = 20
#: None of them pauses for longer, see `qworker.consumer.child.handlers.unrunnable`.
_SOON_MS: Final = 330_000
#: Name of the task of a message that cannot be decrypted here.
_ENCRYPTED: Final = "(encrypted)"
_DEAD_AFTER: Final = "they become dead letters after the worker's --unknown-wait (1h)"


@dataclass(slots=True)
class _Waiting:
    """The sampled messages of one task that wait in a queue."""

    seen: int = 0
    since_ms: int = 2**53


def check_unknown(
    access: NamespaceAccess, queues: Mapping[str, Inspection], workers: Iterable[Worker]
) -> Iterator[Finding]:
    """Name the tasks whose messages wait, per queue. Reads only queues that ever had such messages."""
    alive = [worker for worker in workers if not worker.is_gone]
    for name, inspection in queues.items():
        if not (inspection.delayed and inspection.stats.get("unknown")):
            continue
        for task, waiting in sorted(_waiting_in(access, name).items()):
            yield _finding(name, task, waiting, alive, inspection.now_ms)


def _waiting_in(access: NamespaceAccess, queue: str) -> dict[str, _Waiting]:
    from qworker.wire.envelope import Envelope
    from qworker.wire.keys import QueueKeys
    from qworker.wire.numbers import whole

    now_ms = access.now_ms()
    waiting: dict[str, _Waiting] = defaultdict(_Waiting)
    for shard in access.queues.ref(queue).shards.names(queue):
        delayed = QueueKeys(access.namespace, shard).delayed
        soonest = ("BYSCORE", "LIMIT", 0, _SAMPLE)
        for item in access.ask("ZRANGE", delayed, "-inf", now_ms + _SOON_MS, *soonest):
            envelope = Envelope.parse(item)
            since_ms = whole(envelope.flags.get("k")) if envelope and envelope.has_flags else None
            if envelope is None or since_ms is None:
                continue
            of_task = waiting[_task_of(envelope)]
            of_task.seen += 1
            of_task.since_ms = min(of_task.since_ms, since_ms)
    return waiting


def _task_of(envelope: Envelope) -> str:
    from qworker.errors import InvalidError
    from qworker.wire.codec import decode_call
    from qworker.wire.keyring import is_encrypted

    if is_encrypted(envelope):
        return _ENCRYPTED
    try:
        return decode_call(envelope.body).task
    except InvalidError:
        return "?"


def _finding(
    queue: str, task: str, waiting: _Waiting, workers: list[Worker], now_ms: int
) -> Finding:
    since = f"the first for {span(max(0, now_ms - waiting.since_ms) / 1000)}"
    # A worker with too many tasks lists none.
    knowing = [
        worker.name
        for worker in workers
        if queue in worker.described.queues
        and (worker.described.tasks is None or task in worker.described.tasks)
    ]
    if task == _ENCRYPTED:
        status, held = Status.PROBLEM, "encrypted messages whose key no worker holds"
        fix = f"give the workers the key (QWORKER_KEYS_FILE); {_DEAD_AFTER}"
    elif knowing:
        status, held = Status.WARNING, f"messages of task {task!r} that not every worker knows"
        fix = f"{listed(knowing)} may know it: redeploy the others, or give each app its own queues"
    else:
        status, held = Status.PROBLEM, f"messages of task {task!r} that no worker knows"
        fix = f"deploy the worker that has it; {_DEAD_AFTER}"
    return Finding(f"unknown.{queue}", status, safe(f"{queue} holds {held}, {since}"), fix)
