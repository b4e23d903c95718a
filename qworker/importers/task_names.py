"""Which task a function of another system becomes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from qworker.errors import InvalidNameError, InvalidOptionError
from qworker.importers.source import RefusedMessageError
from qworker.wire.codec import encode_call
from qworker.wire.names import check_task

__all__ = ["TaskNames"]

_PAIR: Final = re.compile(r"([^=]+)=(.+)", re.DOTALL)


class TaskNames:
    """Maps functions to tasks, by default to the last part of the dotted name.

    `full` keeps the dotted name instead. Two functions become one task only if both are mapped to it.
    """

    def __init__(self, pairs: Sequence[str] = (), *, full: bool = False) -> None:
        """Take `function=task` pairs. Raises `InvalidOptionError` and `InvalidNameError`."""
        self._full = full
        self._mapped: dict[str, str] = {}
        #: Function → task, for all functions so far.
        self.used: dict[str, str] = {}
        for pair in pairs:
            match = _PAIR.fullmatch(pair)
            if match is None:
                raise InvalidOptionError(
                    "--task-map", f"{ascii(pair)[:80]} is not a pair", "write FUNCTION=TASK"
                )
            self._mapped[match[1]] = check_task(match[2], "--task-map")

    @property
    def unmatched(self) -> list[str]:
        """Mapped functions that no message has called so far."""
        return [function for function in self._mapped if function not in self.used]

    def call(self, function: str, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
        """Encode a call of the task of a function. Raises `RefusedMessageError` as `task` does, `InvalidBodyError`."""
        return encode_call(self.task(function), args, kwargs)

    def task(self, function: str) -> str:
        """Return the task of a function. Raises `RefusedMessageError` (`task_name`, `ambiguous_task`)."""
        if function in self.used:
            return self.used[function]
        task = self._mapped.get(function)
        if task is None:
            task = function if self._full else function.rpartition(".")[2]
            try:
                check_task(task)
            except InvalidNameError as error:
                raise RefusedMessageError(
                    "task_name", f"{function[:200]}: {error.problem}"
                ) from error
            for other, taken in self.used.items():
                if taken == task:
                    raise RefusedMessageError(
                        "ambiguous_task", f"{function} and {other} would both become {task}"
                    )
        self.used[function] = task
        return task
