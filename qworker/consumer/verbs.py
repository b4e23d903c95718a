"""What a worker does for operators, besides leaving: the verbs of `consumer/control.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import InvalidOptionError

if TYPE_CHECKING:
    from qworker.consumer.control import Reply, Verb
    from qworker.consumer.supervisor import Supervisor

__all__ = ["MAX_PROCESSES", "operator_verbs"]

#: As for `qworker run --procs`.
MAX_PROCESSES: Final = 1024


def operator_verbs(supervisor: Supervisor) -> dict[str, Verb]:
    """Name the verbs that a worker knows."""

    def scale(arguments: Mapping[str, Any], reply: Reply) -> None:
        before = supervisor.wanted
        wanted = _wanted(arguments, before)
        supervisor.scale(wanted)
        reply(True, processes=wanted, before=before)

    return {"scale": scale}


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
