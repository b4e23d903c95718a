"""Loops of runs, without I/O: which items are done, when that is kept, and where the next activation continues.

Steps within an item are named after it (`rows[57].charge`), so that an activation that begins at a later item finds
its own steps. Once a position behind an item is kept, the steps of that item are forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec
from msgspec import Raw

from qworker.app.arguments.parameters import parameters_of
from qworker.app.control import Cancel, Interrupted
from qworker.app.runs.items import Item, current_item
from qworker.durations import Duration, duration_ms
from qworker.engine.calls import abandon
from qworker.errors import (
    InvalidBodyError,
    InvalidOptionError,
    InvalidResultError,
    LeaseLostError,
    SourceShrankError,
    shown,
)
from qworker.wire import codec
from qworker.wire.memo import write_memo

if TYPE_CHECKING:
    from qworker.app.runs.steps import Steps
    from qworker.engine.command import Command
    from qworker.engine.run import Recalled

__all__ = ["Loop"]

T = TypeVar("T")

_MAX_EVERY: Final = 1_000_000
_DAY_MS: Final = 86_400_000
_LEAST_MS: Final = 100
_MAX_KEY: Final = 4096
#: A position is kept early once this many steps of items that are done wait to be forgotten.
_MAX_STEPS: Final = 500
_PER_CALL: Final = 1000
_MAX_GROUPS: Final = 100


class _Kept(msgspec.Struct, omit_defaults=True):
    """A position as it is kept. `of`: the length of a sequence. `after`: the key of the last item that is done."""

    done: int
    of: int | None = None
    after: Raw | msgspec.UnsetType = msgspec.UNSET
    ended: bool = False


_decoder: Final = msgspec.json.Decoder(_Kept)
_encoder: Final = msgspec.json.Encoder()


class Loop(Generic[T]):
    """One loop of one activation. `done` items are handled for good; `kept` of them will not come again.

    `key`: of a resumable source, the key of an item; `source` is called with that of the last item.
    """

    def __init__(
        self,
        steps: Steps,
        name: str,
        every: int,
        interval: Duration,
        source: Any = None,
        key: Callable[[T], Any] | None = None,
    ) -> None:
        if type(every) is not int or not 1 <= every <= _MAX_EVERY:
            raise InvalidOptionError(
                "every", f"{shown(every)} is out of range", f"an int from 1 to {_MAX_EVERY:,}"
            )
        self._every = every
        self._interval_s = (
            duration_ms(interval, "interval", minimum_ms=_LEAST_MS, maximum_ms=_DAY_MS) / 1000
        )
        self._decode: Callable[[Raw], Any] | None = None
        self._key = key
        if key is not None:
            parameters = parameters_of(source, name)
            if not parameters:
                raise InvalidOptionError(
                    f"each({name})",
                    "its source takes no argument",
                    "it is called with the key of the last item that is done, at first with None",
                )
            self._decode = parameters[0].decode
        self._outer = current_item.get()
        self._steps = steps
        #: The name under which its position is kept: `*rows`.
        self.name = steps.begin(f"*{name}")
        self.done = self.kept = 0
        self.ended = False
        #: The length of a sequence.
        self.of: int | None = None
        self._after: Raw | msgspec.UnsetType = msgspec.UNSET
        #: The item that was given out last, until the next one is asked for.
        self.item: Item | None = None
        #: The item that was given out last, and the last one that is done.
        self._given: Any = None
        self._finished: Any = None
        self._checked = False
        self._due_at = 0.0
        self._limit = steps.loop_limit
        #: Names of steps of items that are done, which may be recorded.
        self.steps: list[str] = []
        #: Ids of groups of calls of items that are done.
        self.groups: list[str] = []

    def read(self) -> Command[Recalled] | None:
        """Return the command that reads its position, if it was not read yet."""
        return self._steps.unread(self.name)

    def learn(self, recalled: Recalled) -> None:
        """Keep what was read."""
        self._steps.learn(recalled)

    def resume(self) -> bool:
        """Continue where the last activation stopped; returns False if the loop has ended."""
        stored = self._steps.take(self.name)
        if stored is not None:
            kept = _decoder.decode(stored)
            self.done = self.kept = kept.done
            self.of, self._after, self.ended = kept.of, kept.after, kept.ended
        self._due_at = time.monotonic() + self._interval_s
        if not self.ended:
            self._steps.loops.append(self)
            if self._outer is not None:
                self._outer.inner.append(self)
        return not self.ended

    def check_length(self, length: int) -> None:
        """Note the length of a sequence. Raises `SourceShrankError` if it is less than it was."""
        if length < max(self.done, self.of or 0):
            raise SourceShrankError(self.name[1:], self.done, length)
        self.of = length

    def shrank(self, length: int) -> SourceShrankError:
        """The error of a source that ends before the position."""
        return SourceShrankError(self.name[1:], self.done, length)

    @property
    def is_paged(self) -> bool:
        """Whether its source is a function of the key of the last item."""
        return self._key is not None

    @property
    def after(self) -> Any:
        """The key behind which a resumable source continues; None at the beginning."""
        assert self._decode is not None
        return None if isinstance(self._after, msgspec.UnsetType) else self._decode(self._after)

    def next_page(self, last: T) -> None:
        """Continue behind the last item of a page."""
        self._after = self._encoded(last)

    def check_page(self, item: T, after: Any) -> None:
        """Raise `InvalidOptionError` if a page begins with the item that it should follow."""
        assert self._key is not None
        if after is not None and self._key(item) == after:
            raise InvalidOptionError(
                f"each({self.name[1:]})",
                f"its source returned the item with the key {shown(after)} again",
                "return items behind the key that it is called with",
            )

    # -- items ---------------------------------------------------------------------------------

    def finish(self) -> bool:
        """Note that the item that was given out last is done; returns whether to keep the position now."""
        item = self.item
        if item is None:
            return False
        self.item = None
        current_item.set(self._outer)
        self.done += 1
        self._finished = self._given
        self.steps += item.all_steps()
        self.groups += item.groups
        for inner in item.inner:
            self._steps.forget_loop(inner)
        return (
            self.done - self.kept >= self._every
            or time.monotonic() >= self._due_at
            or len(self.steps) >= _MAX_STEPS
            or len(self.groups) >= _MAX_GROUPS
        )

    def check(self) -> None:
        """Raise what ends the activation before the next item: a stop of the worker, a cancel, a lost lease."""
        steps = self._steps
        steps.check()
        if steps.lost:
            raise LeaseLostError(steps.keys.queue, steps.id)
        if steps.cancelled:
            raise Cancel
        if steps.stopping or (self._limit is not None and self._limit <= 0):
            steps.parked = Interrupted(self.name)
            raise steps.parked

    def give(self, value: T) -> T:
        """Give out an item."""
        if self._key is not None and not self._checked:
            self._check_key(value)
        if self._limit is not None:
            self._limit -= 1
        self._given = value
        self.item = Item(f"{self.name[1:]}[{self.done}].")
        current_item.set(self.item)
        return value

    def end(self) -> None:
        """Note that there are no more items."""
        self.ended = True

    # -- keeping -------------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        """Whether it has done more than is kept."""
        return self.done > self.kept or self.ended

    def keep(self) -> Command[int]:
        """Return the command that keeps the position."""
        steps = self._steps
        if self._key is not None and self.done > self.kept:
            self._after = self._encoded(self._finished)
        value = _encoder.encode(_Kept(self.done, self.of, self._after, self.ended))
        names = steps.namespace, steps.keys.name, steps.id, self.name
        return steps.position(
            self.name, self.done, write_memo(value, steps.keyring, *names), self.steps[:_PER_CALL]
        )

    def was_kept(self) -> bool:
        """Note that the position is kept; returns whether there are more steps to forget."""
        self.kept = self.done
        self._due_at = time.monotonic() + self._interval_s
        self._steps.advanced()
        del self.steps[:_PER_CALL]
        if self.ended and not self.steps:
            self._steps.forget_loop(self)
        return bool(self.steps)

    def abandon(self) -> Command[Any] | None:
        """Return the command that forgets groups of calls of items whose position is kept; None without any."""
        if not self.groups:
            return None
        groups, self.groups = self.groups[:_MAX_GROUPS], self.groups[_MAX_GROUPS:]
        return abandon(self._steps.keys, groups, "")

    def _encoded(self, value: T) -> Raw:
        assert self._key is not None
        key = self._key(value)
        field = f"each({self.name[1:]})"
        try:
            encoded = codec.encode(key)
        except InvalidBodyError as error:
            raise InvalidResultError(
                field, f"has the key {shown(key)}: {error.problem}", "keys are JSON"
            ) from error
        if len(encoded) > _MAX_KEY:
            raise InvalidResultError(
                field,
                f"has a key of {len(encoded):,} bytes of JSON",
                f"at most {_MAX_KEY:,}: only what finds the items behind it",
            )
        return Raw(encoded)

    def _check_key(self, value: T) -> None:
        """Check the first key: what is read from Redis must be what the source expects."""
        assert self._decode is not None
        assert self._key is not None
        encoded, key = self._encoded(value), self._key(value)
        try:
            same = self._decode(encoded) == key
        except (ValueError, msgspec.MsgspecError):
            same = False
        if key is None or not same:
            raise InvalidResultError(
                f"each({self.name[1:]})",
                f"has the key {shown(key)}, which its source would not get back",
                "annotate the parameter of the source with the type of the key, and None",
            )
        self._checked = True
