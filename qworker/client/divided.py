"""A queue that may be divided into shards, as a client knows it, and the shards that take the next calls."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import count
from random import randrange
from typing import Final

from qworker.client.execute.backoff import Backoff
from qworker.client.plan import Plan
from qworker.engine.command import Brief
from qworker.engine.shards import adopt, common_meta, read_mark, read_shards
from qworker.engine.shards import mark as write_mark
from qworker.errors import ServerError, ShardDrainingError, server_refused
from qworker.wire.keys import QueueKeys
from qworker.wire.names import MAX_SHARDS, check_namespace, check_queue_or_shard, split_shard_name
from qworker.wire.shards import UNMARKED, WHOLE, ReshardMark, Shards

__all__ = ["REFRESH_S", "DividedQueue"]

#: Seconds after which a client reads the shards of a queue that it uses again, and writes the queue into the index.
REFRESH_S: Final = 60.0
#: Seconds for which sends try other shards first after a shard failed.
_LEFT_OUT_S: Final = 5.0


class DividedQueue:
    """A queue, or one shard of it. `shards`: the shards of the queue as last read."""

    def __init__(self, namespace: str, queue: str) -> None:
        self.keys = QueueKeys(check_namespace(namespace), check_queue_or_shard(queue))
        self.namespace = namespace
        #: Whether it is one shard, opened by its own name: its operations do not go to others.
        self.single = "/" in queue
        self.shards = WHOLE
        #: Counts receives and sends, so that shards take turns; clients begin with different shards.
        self.turns = count(randrange(MAX_SHARDS))  # noqa: S311 - spreading, not secrecy
        self._read = float("-inf")
        #: Shards that failed a send lately.
        self._failed_sends: dict[int, Backoff] = {}

    @property
    def whole(self) -> bool:
        """Whether it is a queue, not a shard of one, and is not known to have other shards."""
        return not self.single and self.shards.kept == 1

    @property
    def stale(self) -> bool:
        """Whether the shards were read a minute ago or earlier."""
        return time.monotonic() - self._read >= REFRESH_S

    def learn(self, shards: Shards) -> None:
        """Take the shards as the queue has them now."""
        self.shards = shards
        self._read = time.monotonic()

    def learn_from_send(self, shards: Shards) -> None:
        """Take the shards from the reply of a send; if they are older than the known ones, the next use reads them."""
        if shards.epoch < self.shards.epoch:
            self.doubt()
        else:
            self.learn(shards)

    def doubt(self) -> None:
        """Read the shards again before the next use."""
        self._read = float("-inf")

    def look_up(self, *, sure: bool = True) -> Plan[None]:
        """Read how many shards the queue has.

        If the queue knows of fewer changes than this client (a failover lost the last one, or the queue was removed),
        the marks of its shards decide. With `sure` False, and shards that are known, its node may be away: the known
        shards then hold for another minute.
        """
        if self.single:
            return
        self._read = time.monotonic()
        shards: Shards | None
        try:
            if sure or not self.shards.divided:
                shards = yield read_shards(self.keys)
            else:
                shards = yield Brief(read_shards(self.keys))
        except ServerError as error:
            if not server_refused(error):
                raise
            return  # meta holds another type: the next call raises that.
        if shards is not None:
            if shards.epoch < self.shards.epoch:
                shards = yield from self.healed(shards, range(1, self.shards.kept))
            self.learn(shards)

    def healed(self, shards: Shards, numbers: Iterable[int]) -> Plan[Shards]:
        """Restore the shards that a queue has forgotten from the marks of the shards `numbers`; returns the result.

        `shards`: what the queue has stored. A removed shard has no mark.
        """
        marks: dict[int, ReshardMark] = {}
        kept = shards.kept
        for number in numbers:
            mark: ReshardMark | None = yield Brief(read_mark(self._shard_keys(number)))
            if mark is not None and mark != UNMARKED:
                kept = max(kept, number + 1)
                marks[mark.epoch] = mark
        for epoch in sorted(marks, reverse=True):
            if epoch <= shards.epoch:
                break
            # The server ignores a mark from the future.
            changed, shards = yield adopt(self.keys, marks[epoch], kept)
            if changed:
                break
        return shards

    def refused(self, error: ShardDrainingError) -> Plan[None]:
        """After a shard refused a send, make sure that the next attempt reaches a shard that takes it.

        A shard with a newer mark than the queue restores what the queue has forgotten; one with an older mark is
        opened.
        """
        number = split_shard_name(error.shard)[1]
        shards: Shards = yield read_shards(self.keys)
        changed = False
        if error.epoch > shards.epoch:
            closed = ReshardMark(active=error.active, epoch=error.epoch)
            changed, shards = yield adopt(self.keys, closed, max(number + 1, shards.kept))
        if not changed and number < shards.active:
            attributes: dict[str, str] = yield common_meta(self.keys)
            yield write_mark(self._shard_keys(number), shards, attributes)
        self.learn(shards)

    def in_turn(self) -> list[int]:
        """Return the shards that take messages, starting with another one each time; those that failed lately last."""
        active = self.shards.active
        if active == 1:
            return [0]
        first = next(self.turns) % active
        turn = [(first + offset) % active for offset in range(active)]
        if self._failed_sends:
            now = time.monotonic()
            turn.sort(key=lambda number: self._is_left_out(number, now))
        return turn

    def leave_out(self, number: int) -> None:
        """Make sends try other shards first for a few seconds."""
        backoff = self._failed_sends.setdefault(number, Backoff(_LEFT_OUT_S, _LEFT_OUT_S))
        backoff.failed(time.monotonic())

    def _is_left_out(self, number: int, now: float) -> bool:
        backoff = self._failed_sends.get(number)
        return backoff is not None and backoff.left_s(now) > 0

    def _shard_keys(self, number: int) -> QueueKeys:
        return QueueKeys(self.namespace, f"{self.keys.name}/{number}")
