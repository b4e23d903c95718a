"""What a worker does for operators, besides leaving: the verbs of `consumer/control.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qworker.consumer.board import Mark, boot_time
from qworker.consumer.stacks import collect, stack_of
from qworker.errors import InvalidOptionError
from qworker.wire.numbers import whole

if TYPE_CHECKING:
    from qworker.consumer.board import RunningView
    from qworker.consumer.control import Reply, Verb
    from qworker.consumer.process import ChildProcess
    from qworker.consumer.supervisor import Supervisor

__all__ = ["MAX_PROCESSES", "operator_verbs"]

#: As for `qworker run --procs`.
MAX_PROCESSES: Final = 1024
#: Handlers of which a worker tells where they are, and how much of each.
_SHOWN_HANDLERS: Final = 50
_SHOWN_CHARACTERS: Final = 4096


def operator_verbs(supervisor: Supervisor) -> dict[str, Verb]:
    """Name the verbs that a worker knows."""

    def scale(arguments: Mapping[str, Any], reply: Reply) -> None:
        before = supervisor.wanted
        wanted = _wanted(arguments, before)
        supervisor.scale(wanted)
        reply(True, processes=wanted, before=before)

    def cancel(arguments: Mapping[str, Any], reply: Reply) -> None:
        lease_id, index = str(arguments.get("lease")), str(arguments.get("index"))
        found = _running(supervisor, lease_id, index)
        if found is None:
            reply(False, found=False)
            return
        child, view = found
        name = child.task_name(view.task)
        others = len(child.board.running()) - 1
        task = child.tasks[view.task] if view.task < len(child.tasks) else None
        said = {"found": True, "task": name, "pid": child.pid}
        if task is None or task.batch:
            reply(False, f"it runs in a batch of {name}, whose messages run together", **said)
        elif task.is_async:
            if child.board.orders.cancel(view.lease, view.place, lease_id):
                reply(True, f"its coroutine is cancelled, in process {child.pid}", **said)
            else:
                reply(False, "another message of its process is being cancelled; ask again", **said)
        elif arguments.get("kill") is True:
            child.kill("cancelled", (view,))
            reply(True, f"its process {child.pid} was ended", others=others, **said)
        else:
            beside = f", and {others} handlers beside it start again" if others > 0 else ""
            reply(
                False,
                f"{name} is not async: only its process can be ended{beside}; --kill does so",
                **said,
            )

    def stack(arguments: Mapping[str, Any], reply: Reply) -> None:
        children = [child for child in supervisor.children if not child.killed]
        handlers, left = _stacks(children)
        reply(True, handlers=handlers, left_out=left)

    return {"scale": scale, "cancel": cancel, "stack": stack}


def _stacks(children: Sequence[ChildProcess]) -> tuple[list[dict[str, Any]], int]:
    """Say what each running handler runs, the oldest first, and how many more there are."""
    stacks, now = collect(children), boot_time()
    running = sorted(
        ((child, view) for child in children for view in child.board.running()),
        key=lambda pair: pair[1].started,
    )
    found = []
    for child, view in running[:_SHOWN_HANDLERS]:
        lease = child.board.lease(view.lease)
        found.append(
            {
                "pid": child.pid,
                "task": child.task_name(view.task),
                "id": f"{lease.lease_id}:{view.place}" if lease is not None else "",
                "seconds": round(now - view.started, 3),
                "stack": stack_of(stacks.get(child.pid, ""), view.slot)[:_SHOWN_CHARACTERS],
            }
        )
    return found, len(running) - len(found)


def _running(
    supervisor: Supervisor, lease_id: str, index: str
) -> tuple[ChildProcess, RunningView] | None:
    """Find the handler that runs a message, by its receipt; of a batch, the one call for all of them."""
    for child in supervisor.children:
        if child.killed:
            continue
        leases = {lease.slot: lease for lease in child.board.held_leases()}
        for view in child.board.running():
            lease = leases.get(view.lease)
            if lease is None or lease.lease_id != lease_id:
                continue
            first = 0 if lease.count == 1 else 1
            place = whole(index)
            if place is None or not 0 <= place - first < len(lease.marks):
                continue
            of_batch = view.task < len(child.tasks) and child.tasks[view.task].batch
            if view.place == place - first or (
                of_batch and lease.marks[place - first] == Mark.RUNNING
            ):
                return child, view
    return None


def _wanted(arguments: Mapping[str, Any], before: int) -> int:
    to, by = arguments.get("to"), arguments.get("by", 0)
    wanted = before + by if to is None and type(by) is int else to
    if type(wanted) is not int or not 1 <= wanted <= MAX_PROCESSES:
        raise InvalidOptionError(
            "processes",
            f"{ascii(wanted)[:40]} cannot be had",
            f"a number from 1 to {MAX_PROCESSES}; to end a worker: qworker worker drain",
        )
    return wanted
