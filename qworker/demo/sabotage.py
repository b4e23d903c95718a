"""Kills a worker in the middle of its work, and notes what it had in hand."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qworker.client.commands.command import Command
from qworker.consumer.board import LeaseView, Mark
from qworker.demo.app import NAMESPACE
from qworker.demo.stored import keys_of_items
from qworker.wire.keys import QueueKeys
from qworker.wire.leases import held_items

if TYPE_CHECKING:
    from qworker.client.sync import Client
    from qworker.consumer.process import ChildProcess
    from qworker.consumer.supervisor import Supervisor

__all__ = ["Kill", "kill_worker"]

_DEATH_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker that was killed. `in_hand`: the keys of messages that it had received and not handled; `leases`: the
    Redis keys of the leases that it left behind.
    """

    pid: int
    in_hand: frozenset[str]
    leases: tuple[str, ...]

    def is_settled(self, client: Client) -> bool:
        """Say whether the supervisor has put all that the worker had in hand where it belongs."""
        if not self.leases:
            return True
        left: int = client.execute(Command(None, (), ("EXISTS", *self.leases), int))
        return left == 0


def kill_worker(supervisor: Supervisor, client: Client) -> Kill | None:
    """Kill a worker that has messages in hand with SIGKILL; None where none has.

    To be called in the supervisor's own thread: the supervisor has then not seen the death yet, and what the worker
    held still stands in its leases.
    """
    for child in supervisor.children:
        if child.ended() is None and child.ready and _has_work(child):
            os.kill(child.pid, signal.SIGKILL)
            try:
                child.process.wait(_DEATH_S)
            except subprocess.TimeoutExpired:
                return None  # stuck in the kernel: it is dead as soon as it comes out
            return _look_after(child, supervisor.queues, client)
    return None


def _has_work(child: ChildProcess) -> bool:
    return any(Mark.RUNNING in lease.marks for lease in child.board.held_leases())


def _look_after(child: ChildProcess, queues: list[str], client: Client) -> Kill:
    """Read what a dead worker has left in its leases."""
    in_hand: set[str] = set()
    leases: list[str] = []
    for lease in child.board.held_leases():
        queue = queues[lease.queue]
        leases.append(QueueKeys(NAMESPACE, queue).lease(lease.lease_id))
        flat: list[bytes] = client.execute(Command(None, (), ("HGETALL", leases[-1]), list))
        for index, item in held_items(flat):
            if not _is_done(lease, int(index)):
                in_hand.update(keys_of_items(queue, [item]))
    return Kill(child.pid, frozenset(in_hand), tuple(leases))


def _is_done(lease: LeaseView, index: int) -> bool:
    # A message alone in its lease stands in field 0, in company they count from 1.
    place = max(0, index - 1)
    return place < len(lease.marks) and lease.marks[place] == Mark.DONE
