"""Steps of a run, without I/O: their names and numbers, recorded values, sleeps, waits for signals, and loops."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from qworker.app.control import Interrupted, KeyMissing, Parked
from qworker.app.runs.items import current_item
from qworker.app.runs.open_steps import OpenSteps
from qworker.app.runs.signals import SignalWait, named_decoder
from qworker.durations import Duration, duration_ms
from qworker.engine.calls import WaitingRun
from qworker.engine.run import LoopPosition, StepRecord, keep_position, recall_steps, record_step
from qworker.errors import (
    InvalidNameError,
    InvalidOptionError,
    UnknownKeyError,
    shown,
)
from qworker.wire.memo import read_memo, write_memo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qworker.app.app_parts import RunApp
    from qworker.app.runs.items import OpenLoop
    from qworker.engine.command import Command
    from qworker.engine.run import Recalled
    from qworker.wire.envelope import Envelope
    from qworker.wire.keyring import Keyring
    from qworker.wire.keys import QueueKeys

__all__ = ["RunDelivery", "Steps"]

T = TypeVar("T")

#: Of a repeated step, this many values are read with the one that is needed.
_AHEAD: Final = 50
#: A step within an item of a loop.
_ITEM: Final = re.compile(r"(.*)\[(\d+)\](\.[^\[]*)")
#: The longest name that the scripts take.
_MAX_NAME: Final = 128


class RunDelivery(Protocol):
    """The delivery of a run's message."""

    lease: Any
    index: str

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled while it runs."""

    def envelope(self) -> Envelope | None:
        """The parsed envelope."""

    def unblame(self, flags: Mapping[str, str]) -> None:
        """Forget the failures before this delivery, and add flags, as the server does."""


class Steps:
    """The steps of one activation of a run: numbers them, and keeps the recorded ones that were read."""

    def __init__(self, app: RunApp, delivery: RunDelivery, keep_ms: int) -> None:
        envelope = delivery.envelope()
        assert envelope is not None
        flags = envelope.flags if envelope.has_flags else {}
        self.keys: QueueKeys = delivery.lease.queue.keys
        self.id = envelope.id
        self._app = app
        self._delivery = delivery
        self._keep_ms = keep_ms
        self._numbers: Counter[str] = Counter()
        self._read: dict[str, bytes | None] = {}
        #: Everything was read: at the first delivery nothing is recorded.
        self._whole = envelope.receives == 0 and "t" not in flags
        self._marked = "c" in flags
        self._now_ms: int = delivery.lease.now_ms
        self._began = time.monotonic()
        #: Set once the run is parked: nothing that the function does afterwards counts.
        self.parked: Parked | Interrupted | KeyMissing | None = None
        self._blamed = envelope.nacks + envelope.timeouts > 0
        #: Those that have begun and not ended.
        self.loops: list[OpenLoop] = []
        #: Of an async workflow.
        self.open = OpenSteps(self.id)

    @property
    def namespace(self) -> str:
        """The namespace of the app."""
        return self._app.namespace

    @property
    def keyring(self) -> Keyring:
        """The keys of the app."""
        return self._app.keyring

    @property
    def loop_limit(self) -> int | None:
        """Items after which a loop is interrupted, in tests."""
        return self._app.loop_limit

    @property
    def waiting(self) -> WaitingRun:
        """The run, and its delivery, for a group of calls that it waits for."""
        return WaitingRun(self.id, self._delivery.lease.id, self._delivery.index)

    @property
    def lost(self) -> bool:
        """Whether the lease of this delivery has run out."""
        return bool(self._delivery.lease.lost)

    @property
    def cancelled(self) -> bool:
        """Whether the run was cancelled during this activation."""
        return self._delivery.cancelled

    @property
    def stopping(self) -> bool:
        """Whether the worker stops."""
        return bool(self._delivery.lease.stopping)

    def check(self) -> None:
        """Raise what has parked the run, if anything has: no step begins any more, except as part of an open one."""
        if self.parked is not None and not self.open.has_caller():
            raise self.parked

    def close(self) -> None:
        """Note that the function has ended by an error: coroutines that it has left behind begin no step."""
        if self.parked is None:
            self.parked = Interrupted(self.id)

    def begin(self, name: str) -> str:
        """Return the name under which the next step of this name is recorded.

        A sleep begins with `~`, a loop with `*`, a signal with `!`. All but signals belong to the item of a loop in
        which they begin. Raises what has parked the run; a loop does so when it is asked for an item.
        """
        if not name.startswith("*"):
            self.check()
        item = None if name.startswith("!") else current_item.get()
        if item is not None:
            sign, plain = (name[0], name[1:]) if name[0] in "~*" else ("", name)
            name = f"{sign}{item.path}{plain}"
        self._numbers[name] += 1
        number = self._numbers[name]
        if number > 1:
            name = f"{name}#{number}"
        if item is not None:
            if len(name) > _MAX_NAME:
                raise InvalidNameError(
                    "step",
                    f"{shown(name)} is longer than {_MAX_NAME} characters with its loop",
                    "give the step or the loop a shorter name",
                )
            item.steps.append(name)
        return name

    def begin_gather(self, name: str) -> str:
        """Return the name of the next gather of this name: with a number, which names of signals cannot have."""
        name = self.begin(name)
        if "#" not in name:
            name = f"{name}#1"
        item = current_item.get()
        if item is not None:
            item.steps += (f"!{name}", f"~{name}")
        return name

    def has(self, step: str) -> bool:
        """Whether a step is recorded, as far as was read."""
        return self._read.get(step) is not None

    def due_ms(self, end: str) -> int | None:
        """Return the time recorded under the name of a sleep or a wait, as far as was read."""
        stored = self._read.get(end)
        return None if stored is None else int(stored)

    def unread(self, step: str) -> Command[Recalled] | None:
        """Return the command that reads a step, if it was not read yet."""
        if self._whole or step in self._read:
            return None
        if (match := _ITEM.fullmatch(step)) is not None:
            # The same step of the next items.
            before, number, behind = match.groups()
            ahead = [f"{before}[{int(number) + later}]{behind}" for later in range(1, _AHEAD)]
        else:
            name, _, number = step.partition("#")
            first = int(number or 1)
            ahead = [f"{name}#{later}" for later in range(first + 1, first + _AHEAD)]
        return recall_steps(self.keys, self.id, [step, *ahead])

    def learn(self, recalled: Recalled) -> None:
        """Keep recorded steps that were read."""
        self._read.update(recalled.values)
        self._whole = recalled.whole

    def take(self, step: str) -> bytes | None:
        """Return the JSON of a recorded step; None if it is not recorded. Raises `ProtectionError`."""
        stored = self._read.pop(step, None)
        return None if stored is None else self.opened(step, stored)

    def record(self, step: str, value: bytes, lasted_s: float = 0.0) -> Command[bytes]:
        """Return the command that records the JSON of a step, and how long its function took."""
        names = self._app.namespace, self.keys.name, self.id, step
        return record_step(
            self.keys,
            StepRecord(
                self.id,
                self._delivery.lease.id,
                self._delivery.index,
                step,
                write_memo(value, self._app.keyring, *names, lasted_ms=int(1000 * lasted_s)),
                None if self._marked else self._keep_ms,
                self._blamed,
            ),
        )

    def recorded(self, step: str, stored: bytes) -> bytes:
        """Note that a step is recorded, and return its JSON. Raises `ProtectionError`."""
        self.advanced()
        return self.opened(step, stored)

    def advanced(self) -> None:
        """Note that the run has come further: its message was marked, and its failures are forgotten."""
        if self._blamed or not self._marked:
            self._delivery.unblame({"c": "1", "r": str(self._keep_ms)})
            self._blamed, self._marked = False, True

    def position(
        self, loop: str, done: int, value: bytes, forgotten: Sequence[str]
    ) -> Command[int]:
        """Return the command that keeps how far a loop has come."""
        return keep_position(
            self.keys,
            LoopPosition(
                self.id,
                self._delivery.lease.id,
                self._delivery.index,
                loop,
                done,
                value,
                forgotten,
                None if self._marked else self._keep_ms,
                self._blamed,
            ),
        )

    def forget_loop(self, loop: OpenLoop) -> None:
        """Forget a loop that has ended, or whose item has."""
        if loop in self.loops:
            self.loops.remove(loop)

    def unkept(self) -> list[OpenLoop]:
        """Loops that have done more than is kept, at the end of an activation that has not ended its run."""
        return [] if self.lost or self.cancelled else [loop for loop in self.loops if loop.behind]

    def sleep(self, name: str, delay_ms: int | None, signal: str = "") -> None:
        """Return once the time recorded under a name is over; until then park the run, first for `delay_ms`."""
        due_ms = self.due_ms(name)
        if due_ms is not None:
            delay_ms = due_ms - self.now_ms()
            if delay_ms <= 0:
                return
        self.parked = Parked(delay_ms, name, signal, None if self._marked else self._keep_ms)
        raise self.parked

    def now_ms(self) -> int:
        """The server's time, as far as this delivery knows; never ahead of it."""
        return self._now_ms + int((time.monotonic() - self._began) * 1000)

    def begin_wait(
        self, signal: type[T], name: str | None, timeout: Duration | None
    ) -> SignalWait[T]:
        """Name a wait. Raises `InvalidOptionError` for a second one of this name, and as `named_decoder`."""
        name, decoder = named_decoder(signal, name)
        delay_ms = None if timeout is None else duration_ms(timeout, "timeout")
        if self.begin(f"!{name}") != f"!{name}":
            raise InvalidOptionError(
                f"signal {name!r}", "is waited for twice", "give each wait a name= of its own"
            )
        return SignalWait(self.id, name, f"!{name}", f"~wait:{name}", delay_ms, decoder)

    def opened(self, step: str, stored: bytes) -> bytes:
        """Return the JSON of a stored value. Raises `KeyMissing`, and `ProtectionError` for one that was changed."""
        names = self._app.namespace, self.keys.name, self.id, step
        try:
            return read_memo(stored, self._app.keyring, *names)
        except UnknownKeyError as error:
            raise self.key_missing(error) from error

    def key_missing(self, error: UnknownKeyError) -> KeyMissing:
        """Return what ends this activation, since only a worker with another key can go on."""
        self.parked = KeyMissing(error.problem)
        return self.parked
