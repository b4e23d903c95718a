"""One run of the demo: the producer, a supervisor with its workers, a reaper, a kill, and the account."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from qworker.consumer.options import RunOptions
from qworker.consumer.supervisor.hooks import Hooks
from qworker.consumer.supervisor.supervisor import Supervisor
from qworker.daemon.thread import EmbeddedReaper
from qworker.demo.account import Account, settle_account
from qworker.demo.app import (
    NAMESPACE,
    QUEUES,
    RESULTS_VARIABLE,
    app,
    check_file,
    index_file,
)
from qworker.demo.outcome import DemoResult
from qworker.demo.progress import DemoProgress, take_snapshot
from qworker.demo.results import Results
from qworker.demo.sabotage import Kill, kill_worker
from qworker.demo.stored import dead_keys, waiting_keys
from qworker.engine import attributes, inspect
from qworker.store.connections import ConnectionFactory
from qworker.telemetry.options import LogOptions

if TYPE_CHECKING:
    from types import FrameType

    from qworker.client.execute.sync import Client
    from qworker.demo.sources import Sources
    from qworker.demo.view import DemoOutput
    from qworker.store.embedded.store import PrivateStore

__all__ = ["Demo"]

#: A worker is killed when this share of all messages is done.
_KILL_AT: Final = 0.1
_SHOW_S: Final = 0.1
#: A run is aborted after this long without progress.
_STALLED_S: Final = 120.0
_TICK_MS: Final = 200


class Demo:
    """One run on a store that runs already. A context: leaving it closes connections and results."""

    def __init__(
        self,
        store: PrivateStore,
        sources: Sources,
        view: DemoOutput,
        *,
        procs: int,
        journalled: bool = False,
    ) -> None:
        """Connect. `journalled`: the queues keep a journal of every event."""
        self._store = store
        self._sources = sources
        self._view = view
        self._factory = ConnectionFactory(store.url, name="qworker-demo")
        app.connect_with(self._factory)
        self._client: Client = app.client
        self._results_path = store.directory / "results.sqlite"
        self._results = Results.create(self._results_path)
        self._procs = procs
        if journalled:
            for name in QUEUES:
                self._client.execute(attributes.configure(app.queue(name).keys, {"journal": "all"}))
        self._begun = time.monotonic()
        self._ended: float | None = None
        self._last: DemoProgress | None = None
        self._moved_at = time.monotonic()
        self._next_show = 0.0
        self._kill: Kill | None = None
        self._back = False
        self._stopped = ""
        self._supervisor: Supervisor | None = None
        #: Whether Ctrl-C or SIGTERM came.
        self.interrupted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._results.close()
        app.close()

    # -- sending -------------------------------------------------------------------------------

    def send(self) -> None:
        """Send two messages per file, one to index and one to check it, in atomic chunks of 1,000."""
        say, files = self._view.say, self._sources.files
        roots = ", ".join(self._sources.roots)
        say(
            f"qworker demo: index {len(files):,} files of Python source code, and check them",
            "title",
        )
        say(f"  files    {roots}", "dim")
        for line in self._sources.left_out[:5]:
            say(f"  left out {line}", "dim")
        say(
            f"  store    {self._store.engine} at {self._store.url}, private, gone at the end", "dim"
        )
        self._begun = time.monotonic()
        for task, calls in (
            (index_file, [index_file.call(file.path, file.module) for file in files]),
            (check_file, [check_file.call(file.path) for file in files]),
        ):
            self._results.note(sent=task.send_many(calls))
        seconds = time.monotonic() - self._begun
        say(f"  sent     {2 * len(files):,} messages in {seconds:.2f} s", "dim")

    # -- working -------------------------------------------------------------------------------

    def work(self) -> None:
        """Run workers and a reaper until every queue is empty, and kill a worker midway."""
        self._moved_at = time.monotonic()
        reaper = EmbeddedReaper(self._client, NAMESPACE, tick_ms=_TICK_MS, durability="off")
        os.environ[RESULTS_VARIABLE] = str(self._results_path)
        supervisor = self._supervisor = Supervisor(
            "qworker.demo.app:app",
            self._factory,
            RunOptions(procs=self._procs, queues=QUEUES, grace="5s"),
            LogOptions(log_level="error"),
            Hooks(on_turn=self._on_turn),
        )
        reaper.start()
        try:
            with self._stopping_on_signals(supervisor):
                supervisor.run()
        finally:
            self._view.end(None)
            reaper.stop()
            del os.environ[RESULTS_VARIABLE]

    def _on_turn(self) -> None:
        """Called by the supervisor twenty times a second, in its own thread."""
        now = time.monotonic()
        supervisor = self._supervisor
        assert supervisor is not None
        if supervisor.stopping:
            return
        if self._kill is not None and not self._back:
            self._say_if_returned(self._kill)
        if now < self._next_show:
            return
        self._next_show = now + _SHOW_S
        snapshot = self._snapshot()
        self._view.show(snapshot)
        if self._last is None or snapshot.ended != self._last.ended:
            self._moved_at = now
        self._last = snapshot
        if self._kill is None and snapshot.ended >= _KILL_AT * 3 * len(self._sources.files):
            self._kill_one(supervisor)
        if not snapshot.stored:
            self._ended = now
            supervisor.stop()
        elif now - self._moved_at > _STALLED_S:
            self._stopped = f"nothing was handled for {_STALLED_S:.0f} s"
            supervisor.stop()

    def _snapshot(self) -> DemoProgress:
        # In the order in which messages send others: if all are empty in this order, all stay empty.
        names = (index_file.queue, check_file.queue, *QUEUES)
        queues = {
            name: self._client.execute(inspect.inspect(app.queue(name).keys))
            for name in dict.fromkeys(names)
        }
        return take_snapshot(time.monotonic() - self._begun, queues, self._supervisor)

    def _kill_one(self, supervisor: Supervisor) -> None:
        self._kill = kill_worker(supervisor, self._client)
        if self._kill is not None:
            self._killed_at = time.monotonic()
            elapsed_s = self._killed_at - self._begun
            self._view.say(
                f"  {elapsed_s:4.1f} s   worker {self._kill.pid} killed with SIGKILL "
                f"while it held {len(self._kill.held)} messages",
                "bad",
            )

    def _say_if_returned(self, kill: Kill) -> None:
        if kill.is_settled(self._client):
            self._back = True
            now = time.monotonic()
            self._view.say(
                f"  {now - self._begun:4.1f} s   its {len(kill.held)} messages are back in their queues, "
                f"{1000 * (now - self._killed_at):.0f} ms after the kill",
                "good",
            )

    @contextmanager
    def _stopping_on_signals(self, supervisor: Supervisor) -> Iterator[None]:
        """Stop gracefully on Ctrl-C and SIGTERM, at once on the second."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.interrupted = True
            self._stopped = f"stopped by {signal.Signals(number).name}"
            supervisor.stop()

        before = {number: signal.signal(number, stop) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # -- the account ---------------------------------------------------------------------------

    def outcome(self) -> DemoResult:
        """Compare the messages sent with those handled, dead and, after a stop, still waiting."""
        seconds = (self._ended or time.monotonic()) - self._begun
        return DemoResult(
            account=self._account(),
            index=self._results.index(),
            files=len(self._sources.files),
            retried=self._snapshot().retried,
            workers=self._procs,
            workers_killed=int(self._kill is not None),
            seconds=seconds,
            engine=str(self._store.engine),
            stopped=self._stopped,
        )

    def _account(self) -> Account:
        kill = self._kill
        return settle_account(
            sent=self._results.sent(),
            handled=self._results.handled(),
            dead=dead_keys(),
            waiting=waiting_keys() if self._stopped else frozenset(),
            held=kill.held if kill else frozenset(),
            handled_by_others=self._results.handled(by_others_than=kill.pid if kill else None),
            duplicates=self._results.duplicates(),
        )


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
