"""Kills a worker in the middle of its work, and notes the messages that it held."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qworker.consumer.board.states import LeaseView, Mark
from qworker.demo.stored import keys_of_items
from qworker.engine.raw import raw
from qworker.wire.leases import held_items

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.consumer.supervisor.processes.process import ChildProcess
    from qworker.consumer.supervisor.supervisor import Supervisor

__all__ = ["Kill", "kill_worker"]

_DEATH_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Kill:
    """A killed worker. `held`: the keys of messages that it had received and not handled; `leases`: the Redis keys of
    the leases that it left behind.
    """

    pid: int
    held: frozenset[str]
    leases: tuple[str, ...]

    def is_settled(self, client: Client) -> bool:
        """Say whether the supervisor has settled all leases of the worker."""
        if not self.leases:
            return True
        left: int = client.execute(raw("EXISTS", *self.leases, decode=int))
        return left == 0


def kill_worker(supervisor: Supervisor, client: Client) -> Kill | None:
    """Kill a worker that holds messages with SIGKILL; None if none does.

    Call it in the supervisor's own thread, which then has not seen the death yet: the leases of the worker still hold
    their messages.
    """
    for child in supervisor.children:
        if child.ended() is None and child.ready and _has_work(child):
            os.kill(child.pid, signal.SIGKILL)
            try:
                child.process.wait(_DEATH_S)
            except subprocess.TimeoutExpired:
                return None  # It is stuck in the kernel, and dies when it comes out.
            return _read_leases(child, client)
    return None


def _has_work(child: ChildProcess) -> bool:
    return any(Mark.RUNNING in lease.marks for lease in child.board.leases.views())


def _read_leases(child: ChildProcess, client: Client) -> Kill:
    """Read the leases of a dead worker, of every shard that it received from."""
    held: set[str] = set()
    leases: list[str] = []
    for lease in child.board.leases.views():
        keys = child.keys[lease.queue]
        leases.append(keys.lease(lease.lease_id))
        flat: list[bytes] = client.execute(raw("HGETALL", leases[-1], decode=list))
        for index, item in held_items(flat):
            if not _is_done(lease, index.decode()):
                held.update(keys_of_items(keys.name, [item]))
    return Kill(child.pid, frozenset(held), tuple(leases))


def _is_done(lease: LeaseView, index: str) -> bool:
    position = lease.position_of(index)
    return position is not None and lease.marks[position] == Mark.DONE
