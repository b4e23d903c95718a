"""Points at which a process of a run ends itself: FAULTS_CRASH is `POINT WHO EVERY`.

Points: `after_receive` (a batch has come, nothing has started), `before_ack` (handlers have ended, nothing is
reported), `mid_tick` (a reaper has made one of its calls). WHO: `child`, or `worker` for the supervisor and all. About
one in EVERY occasions is one.
"""

from __future__ import annotations

import os
import random
import signal
from importlib import import_module
from typing import Any

import psutil

from verification.faults.history import History

__all__ = ["POINTS", "install"]

#: Module, class and method after whose calls a process may end itself.
POINTS = {
    "after_receive": ("qworker.consumer.child.leases.board_slots", "ChildLeases", "hold"),
    "before_ack": ("qworker.consumer.child.settle.ack_buffer", "AckBuffer", "take"),
    "mid_tick": ("qworker.client.execute.recurring", "RecurringCalls", "execute"),
}


def install(spec: str) -> None:
    """End this process at a point; nothing where `spec` is empty."""
    if not spec:
        return
    point, who, every = spec.split()
    if point != "mid_tick" and "QWORKER_CHILD" not in os.environ:
        return  # a supervisor, which has no such point
    module, owner_name, name = POINTS[point]
    owner = getattr(import_module(module), owner_name)
    method = getattr(owner, name)
    chance = random.Random(os.getpid())
    history = History(os.environ["FAULTS_HISTORY"])
    parent = psutil.Process(os.getppid())

    def method_or_end(self: Any, *args: Any, **given: Any) -> Any:
        result = method(self, *args, **given)
        if result and chance.random() * int(every) < 1:
            pids = [os.getpid()]
            # An orphan's parent is the system's first process, whose children do not count.
            if who == "worker" and os.getppid() == parent.pid:
                siblings = [child.pid for child in parent.children() if child.pid != pids[0]]
                pids += [parent.pid, *siblings]
            history.note("crashed", *pids)
            # This process is the last: no other would end the rest.
            for pid in reversed(pids):
                os.kill(pid, signal.SIGKILL)
        return result

    setattr(owner, name, method_or_end)
