"""The stage of one row: a server under a load, and what a course may do to both.

What a course does to processes, it does by the methods here: they note what was lost and when, and an account is no
better than these notes.
"""

from __future__ import annotations

import random
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from qworker import QueueAttributes, QWorker, SendOptions
from qworker.client.queue import Queue
from qworker.client.relay import outboxes
from qworker.errors import QworkerError
from qworker.fsck.check import check
from qworker.fsck.damage import Damage
from tests.consumer.workers import Worker
from verification.faults.history import Event, History, events_of
from verification.faults.hooks import key_of
from verification.faults.load import Load
from verification.faults.processes import NAMESPACE, Processes, send_signal
from verification.faults.server import FaultServer

__all__ = ["DEADLINE_S", "Stage"]

#: No condition of a run takes longer than this, on any machine.
DEADLINE_S = 180.0
#: Words of a process that has had an answer from the server, and how much of its history is read for them.
_HEARING = (b"heard", b"sent", b"ticked", b"acked")
_TAIL = 65536
#: A producer's note that the last flow of its turn, which has one of each kind, is confirmed.
_STARTED = re.compile(rb" sent \S+/run ")
#: A producer's note that a chunk for one ordered group is confirmed.
_IN_ORDER = re.compile(rb" sent \S+/ordered\d+ ")


class Stage(Processes):
    """One namespace on one server, under a load, for `seconds`. A context: leaving it ends all processes.

    `flows`: so many of each kind are to be started, by a load that then lasts longer (`verification.faults.repeating`);
    or as much of what `each` names, as rows do.
    `in_use` are its queues. `measured`: figures by name, for bounds. `losses`: process → the moments at which it was
    lost, ns. `gone`: keys of messages that the course has deleted. `chance` is the row's.
    """

    def __init__(
        self,
        server: FaultServer,
        directory: Path,
        load: Load,
        *,
        seconds: float,
        chance: random.Random,
        mutation: str = "",
        flows: int = 0,
        each: str = "",
        warm: bool = False,
    ) -> None:
        super().__init__(server, directory, load, mutation, warm=warm)
        self.seconds, self.chance, self.flows, self.each = seconds, chance, flows, each
        self.in_use = [*dict.fromkeys(["load", "aload", *load.queues.split(",")])]
        self.measured: dict[str, float] = {}
        self.losses: dict[int, list[int]] = {}
        self.gone: set[str] = set()
        #: From when until when, in ns, a course has seen leases spared after a gap (lua/lib/grace.lua).
        self.gaps: set[tuple[int, int]] = set()
        self.app = QWorker(NAMESPACE, url=server.near)
        #: Of the workers' metrics and log: why they do not tell of all acks.
        self.unseen: dict[str, str] = {}
        #: What the course itself notes.
        self.notebook = History(str(self.history))
        self._begun = 0.0

    def __enter__(self) -> Stage:
        self.history.mkdir(parents=True)
        for name in self.in_use:
            self.configure(name)
        return self

    def __exit__(self, *exc: object) -> None:
        self.end_processes()
        self.app.close()

    def configure(self, name: str) -> None:
        """Give a queue the attributes that the load says."""
        self.queue(name).configure(
            QueueAttributes(
                visibility=self.load.visibility,
                max_receives=self.load.max_receives,
                journal=self.load.journal,
            )
        )

    def queue(self, name: str = "") -> Queue:
        """A queue; the load's own where no name is given."""
        return self.app.queue(name or self.load.sending.queue)

    @property
    def acked(self) -> int:
        """Messages of the load's queue that were acked until now, as the server counts them."""
        return self.queue().inspect().stats.get("acked", 0)

    @property
    def stored(self) -> int:
        """Messages of the load's queue that are stored now, in whatever place, as the server counts them."""
        return self.queue().inspect().stats.get("stored", 0)

    def begin(self) -> None:
        """Start the processes of the load, and wait until messages are handled."""
        for _ in range(self.load.daemons):
            self.daemon()
        for _ in range(self.load.workers):
            self.worker()
        self.until(
            lambda: len(self.children()) >= self.load.workers * self.load.procs, "workers", 90
        )
        for _ in range(self.load.producers):
            self.produce()
        if self.load.producers:
            self.until(lambda: self.queue().inspect().stats.get("sent", 0) > 0, "first send")
        if self.load.producers and self.load.workers:
            self.until(self._has_ended_any, "first message that was handled")
        self._begun = time.monotonic()

    def _has_ended_any(self) -> bool:
        seen = self.queue().inspect()
        return seen.stats.get("acked", 0) + seen.dead > 0

    # -- time ----------------------------------------------------------------------------------

    def goes_on(self, every_s: float = 0.25, **wanted: float) -> Iterator[None]:
        """Come by every so often while the load lasts, and until the figures that are `wanted` have come together.

        It lasts `seconds`, and at most three minutes longer for `flows` and those figures.
        """
        ending = self._begun + self.seconds
        while True:
            time.sleep(every_s)
            yield
            late = time.monotonic() >= ending and self.come_to() >= self.flows
            enough = all(self.measured.get(name, 0) >= number for name, number in wanted.items())
            if (late and enough) or time.monotonic() > ending + DEADLINE_S:
                return

    def until(
        self, condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S
    ) -> float:
        """Wait for a condition, and return the seconds that took; a server that does not answer is waited for."""
        begun = time.monotonic()
        while True:
            self.check_producers()
            try:
                if condition():
                    return time.monotonic() - begun
            except QworkerError:
                pass
            if time.monotonic() - begun > deadline_s:
                raise TimeoutError(f"no {what} within {deadline_s:.0f} s")
            time.sleep(0.02)

    # -- what a course does --------------------------------------------------------------------

    def lose(self, *pids: int) -> None:
        """Note that processes are lost from now on: what they had begun is to begin again elsewhere."""
        for pid in pids or self.children():
            self.losses.setdefault(pid, []).append(time.monotonic_ns())

    def kill_child(self, among: Iterable[Worker] = ()) -> None:
        """Kill a child at random, of those that have come as far as to speak to the server; of some workers."""
        if pids := self.spoken(self.children(among or self.victims)):
            self.lose(pid := self.chance.choice(pids))
            send_signal(pid, signal.SIGKILL)
            self.add("kills", 1)

    def kill_worker(self) -> None:
        """Kill a supervisor, and its children with it; its messages come back by the reaper alone.

        Another worker takes its place.
        """
        worker = self.chance.choice(self.victims)
        self.lose(worker.process.pid, *worker.children())
        worker.process.kill()
        worker.process.wait(30)
        self.add("worker_kills", 1)
        self.replace(worker)

    def freeze(self, worker: Worker) -> list[int]:
        """Stop a worker, all of it; returns what to give to `thaw`."""
        pids = [worker.process.pid, *worker.children()]
        self.lose(*pids)
        for pid in pids:
            send_signal(pid, signal.SIGSTOP)
        return pids

    def thaw(self, pids: list[int]) -> None:
        """Let frozen processes continue."""
        self.notebook.note("thawed", *pids)
        for pid in pids:
            send_signal(pid, signal.SIGCONT)

    def server_returned(self, *heard_by: Worker) -> None:
        """Wait until every process that lives hears a server that answers again, or some of them do.

        The longest time that this took any process, of all returns, is `reconnect_s`.
        """
        begun = time.monotonic_ns()
        living = [each for each in heard_by or self.running if each.process.poll() is None]
        pids = self.spoken(
            pid for worker in living for pid in (worker.process.pid, *worker.children())
        )
        while pids and time.monotonic_ns() - begun < DEADLINE_S / 2 * 1e9:
            time.sleep(0.02)
            pids = [pid for pid in pids if psutil.pid_exists(pid) and not self._hears(pid, begun)]
        self.most("reconnect_s", round((time.monotonic_ns() - begun) / 1e9, 2))

    def _hears(self, pid: int, since: int) -> bool:
        """Whether a process has noted since a moment (ns) that it hears the server."""
        for path in self.history.glob(f"{pid}-*.history"):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _TAIL))
                for line in file.read().split(b"\n")[1:-1]:
                    at, word, *_ = line.split(b" ")
                    if word in _HEARING and int(at) > since:
                        return True
        return False

    def send(self, task: str, *args: object, options: SendOptions | None = None) -> str:
        """Send one call that is not the load's."""
        return self.queue().send({"task": task, "args": list(args)}, options)

    def repair(self) -> list[Damage]:
        """Let `fsck` repair its findings, and return them."""
        findings = check(self.app.client, NAMESPACE, repair=True)
        return [finding for finding in findings if isinstance(finding, Damage)]

    def note_gaps(self) -> None:
        """Note the last gap that the reapers of each queue have found; the server's clock is that of this machine."""
        ahead_ns = time.time_ns() - time.monotonic_ns()
        for name in self.in_use:
            stats = self.queue(name).inspect().stats
            if until_ms := stats.get("gap_until_ms"):
                first, last = stats["gap_from_ms"] * 10**6, until_ms * 10**6
                # Rounded, so that a clock which is being adjusted makes no second one.
                self.gaps.add(
                    ((first - ahead_ns) // 10**7 * 10**7, (last - ahead_ns) // 10**7 * 10**7)
                )

    # -- what is seen --------------------------------------------------------------------------

    def notes(self, word: str) -> list[Event]:
        """Notes with a word, in order of time."""
        events = [event for event in events_of(self.history) if event.word == word]
        return sorted(events, key=lambda each: each.at)

    def waits_s(
        self, *producers: str, within_ns: tuple[int, int] = (0, sys.maxsize)
    ) -> list[float]:
        """Seconds from the confirmation of each send to the first start of its message, in order of length.

        Of some producers, or of all; of sends that were confirmed `within_ns` of the monotonic clock.
        """
        starts: dict[str, int] = {}
        for event in self.notes("started"):
            starts.setdefault(event.rest[0], event.at)
        delays = []
        for event in self.notes("sent"):
            producer, first, last = event.rest
            if producers and producer not in producers:
                continue
            if not within_ns[0] <= event.at <= within_ns[1]:
                continue
            for number in range(int(first), int(last) + 1):
                if (started := starts.get(f"{producer}-{number}")) is not None:
                    delays.append(max(0, started - event.at) / 1e9)
        return sorted(delays)

    def confirmed(self, *producers: str, since: int = 0) -> int:
        """How many messages were confirmed to some producers, or to all, since a moment (ns)."""
        return sum(
            int(last) - int(first) + 1
            for event in self.notes("sent")
            for producer, first, last in [event.rest]
            if since <= event.at and (not producers or producer in producers)
        )

    def come_to(self) -> int:
        """How many flows of each kind, or messages of ordered groups, were sent and confirmed; 0 if `flows` is 0.

        Or how many children were killed, where these are asked for.
        """
        if not self.flows:
            return 0
        if self.each == "kills":
            return int(self.measured.get("kills", 0))
        pids = [producer.process.pid for producer in self.producers]
        paths = [path for pid in pids for path in self.history.glob(f"{pid}-*.history")]
        sending = self.load.sending
        note, of_each = (_IN_ORDER, sending.chunk) if sending.ordered_groups else (_STARTED, 1)
        return of_each * sum(len(note.findall(path.read_bytes())) for path in paths)

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Every log line of an event, of all processes that were."""
        return [line for worker in (*self.running, *self.ended) for line in worker.events(event)]

    def dead_keys(self) -> set[str]:
        """Keys of all dead letters."""
        client, delays = self.server.redis(), set()
        for name in self.in_use:
            queue = self.queue(name)
            for shard in range(len(queue.division().shards)):
                entries: Any = client.xrange(queue.ref.shard_of(shard).keys.dead)
                delays |= {key_of(fields[b"envelope"]) for _, fields in entries}
        return delays

    def add(self, figure: str, amount: float) -> None:
        """Add to a measured figure."""
        self.measured[figure] = self.measured.get(figure, 0) + amount

    def most(self, figure: str, value: float) -> None:
        """Keep the highest value of a measured figure."""
        self.measured[figure] = max(value, self.measured.get(figure, value))

    def take_metrics(self) -> None:
        """Add up what the workers' metrics say of acks, where no worker was lost with its counts."""
        if self.workers_replaced:
            self.unseen["metrics"] = "a worker is gone, and its counts with it"
        elif self.pullers:
            self.unseen["metrics"] = "consumers by low-level calls have none"
        elif not all(worker.events("metrics_served") for worker in self.workers):
            self.unseen["metrics"] = "a worker has no port for them"
        if self.unseen:
            return
        self.measured["handled_acked"] = self.measured["stale_outcomes"] = 0
        for worker in self.workers:
            port = worker.events("metrics_served")[0]["port"]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                families = text_string_to_metric_families(answer.read().decode())
            for sample in (sample for family in families for sample in family.samples):
                if sample.name == "qworker_stale_outcomes_total":
                    self.add("stale_outcomes", sample.value)
                elif sample.name == "qworker_handled_total" and sample.labels["outcome"] == "acked":
                    self.add("handled_acked", sample.value)

    def take_lines(self) -> None:
        """Count the lines of the workers' logs that tell of acks; all have to have ended."""
        ended = self.logged("child_ended")
        if self.pullers:
            self.unseen["log"] = "consumers by low-level calls write no lines"
        elif self.workers_replaced or any(
            child["reason"] not in ("stopped", "recycled") for child in ended
        ):
            self.unseen["log"] = "a child was killed before it had written all"
        lines = self.logged("message_handled")
        self.measured["logged_acked"] = sum(line["outcome"] == "acked" for line in lines)

    # -- the end -------------------------------------------------------------------------------

    def stop_producers(self) -> None:
        """Stop the producers after what they are sending."""
        for producer in self.producers:
            producer.process.terminate()
        for producer in self.producers:
            producer.process.wait(DEADLINE_S)
        self.measured.setdefault("load_s", round(time.monotonic() - self._begun, 1))
        self.check_producers()

    def drain(self) -> float:
        """Wait until nothing is left in any queue; returns the seconds."""
        return self.until(self.is_drained, "drained queue")

    def is_drained(self) -> bool:
        """Whether nothing is ready, delayed, in a lease or in an outbox, in two looks that saw the same.

        One look visits the queues one by one, and an ack may send a message to a queue that was visited before.
        """
        looks = []
        for _ in range(2):
            seen = [self.queue(name).inspect() for name in self.in_use]
            if any(each.ready or each.delayed or each.leases for each in seen):
                return False
            if any(self.app.client.run(outboxes(self.queue(name).ref)) for name in self.in_use):
                return False
            looks.append([each.stats for each in seen])
        return looks[0] == looks[1]

    def stop_consumers(self) -> None:
        """Stop workers, daemons and pullers gracefully; each has to end with code 0 (`bad_exits`).

        Or by the signal itself, if it did not handle signals yet.
        """
        processes = (*self.workers, *self.daemons, *self.pullers)
        for process in processes:
            process.process.terminate()
        for process in processes:
            code = process.process.wait(DEADLINE_S)
            self.add("bad_exits", float(code not in (0, -signal.SIGTERM)))
