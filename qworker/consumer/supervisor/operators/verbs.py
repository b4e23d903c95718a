"""The verbs with which operators control a worker; to drain it, see `control`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from qworker.consumer.board.clock import boot_time
from qworker.consumer.board.stacks import stack_of
from qworker.consumer.board.states import Mark
from qworker.consumer.supervisor.processes.stacks import collect_stacks
from qworker.wire.control import check_processes

if TYPE_CHECKING:
    from qworker.consumer.board.states import RunningView
    from qworker.consumer.supervisor.operators.control import Reply, Verb
    from qworker.consumer.supervisor.processes.process import ChildProcess

__all__ = ["operator_verbs"]

#: Handlers whose stacks a worker returns, and characters of each.
_SHOWN_HANDLERS: Final = 50
_SHOWN_CHARACTERS: Final = 4096


class HoldsChildren(Protocol):
    """A supervisor, as operators control it."""

    @property
    def wanted(self) -> int:
        """The number of children that it keeps."""

    @property
    def children(self) -> Sequence[ChildProcess]:
        """Its children."""

    def scale(self, wanted: int) -> None:
        """Keep another number of children."""


def operator_verbs(supervisor: HoldsChildren) -> dict[str, Verb]:
    """Return the verbs of a worker by name."""

    def scale(arguments: Mapping[str, Any], reply: Reply) -> None:
        before = supervisor.wanted
        wanted = _wanted(arguments, before)
        supervisor.scale(wanted)
        reply(True, processes=wanted, before=before)

    def cancel(arguments: Mapping[str, Any], reply: Reply) -> None:
        lease_id, index = str(arguments.get("lease")), str(arguments.get("index"))
        running = _running(supervisor, lease_id, index)
        if running is None:
            reply(False, found=False)
            return
        child, view = running
        name = child.task_name(view.task)
        others = len(child.board.running.views()) - 1
        task = child.tasks[view.task] if view.task < len(child.tasks) else None
        data = {"found": True, "task": name, "pid": child.pid}
        if task is None or task.batch:
            reply(False, f"it runs in a batch of {name}, whose messages run together", **data)
        elif task.is_async:
            child.board.orders.cancel(lease_id, view.position, boot_time())
            reply(True, f"its coroutine is cancelled, in process {child.pid}", **data)
        elif arguments.get("kill") is True:
            child.kill("cancelled", (view,))
            reply(True, f"its process {child.pid} was ended", others=others, **data)
        else:
            beside = f", and {others} handlers beside it start again" if others > 0 else ""
            reply(
                False,
                f"{name} is not async: only its process can be ended{beside}; --kill does so",
                **data,
            )

    def stack(arguments: Mapping[str, Any], reply: Reply) -> None:
        children = [child for child in supervisor.children if not child.killed]
        handlers, left = _stacks(children)
        reply(True, handlers=handlers, left_out=left)

    return {"scale": scale, "cancel": cancel, "stack": stack}


def _stacks(children: Sequence[ChildProcess]) -> tuple[list[dict[str, Any]], int]:
    """Describe running handlers, the oldest first, and count those that are left out."""
    stacks, now = collect_stacks(children), boot_time()
    running = sorted(
        ((child, view) for child in children for view in child.board.running.views()),
        key=lambda pair: pair[1].started,
    )
    handlers = []
    for child, view in running[:_SHOWN_HANDLERS]:
        lease = child.board.leases.view(view.lease)
        handlers.append(
            {
                "pid": child.pid,
                "task": child.task_name(view.task),
                "id": child.receipt(lease, view.position) if lease is not None else "",
                "seconds": round(now - view.started, 3),
                "stack": stack_of(stacks.get(child.pid, ""), view.slot)[:_SHOWN_CHARACTERS],
            }
        )
    return handlers, len(running) - len(handlers)


def _running(
    supervisor: HoldsChildren, lease_id: str, index: str
) -> tuple[ChildProcess, RunningView] | None:
    """Find the handler that runs a message, by the receipt; for a message of a batch the call of the batch."""
    for child in supervisor.children:
        if child.killed:
            continue
        leases = {lease.slot: lease for lease in child.board.leases.views()}
        for view in child.board.running.views():
            lease = leases.get(view.lease)
            if lease is None or lease.lease_id != lease_id:
                continue
            position = lease.position_of(index)
            if position is None:
                continue
            of_batch = view.task < len(child.tasks) and child.tasks[view.task].batch
            if view.position == position or (of_batch and lease.marks[position] == Mark.RUNNING):
                return child, view
    return None


def _wanted(arguments: Mapping[str, Any], before: int) -> int:
    to, by = arguments.get("to"), arguments.get("by", 0)
    return check_processes(before + by if to is None and type(by) is int else to, "processes")
