"""Calls that a run makes side by side: they are a group of calls, which the run follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from qworker.app.composition import check_limits, check_members, first_steps, sending_of
from qworker.app.runs.items import current_item
from qworker.app.sender import Call
from qworker.app.trace import outgoing
from qworker.app.work import Work
from qworker.client.calls import begin_group
from qworker.client.follow import Opened, open_fan
from qworker.client.steps import Fan, Step, Writer, groups_of
from qworker.errors import (
    InvalidOptionError,
    ResultError,
    ResultUnknownError,
    TaskEndedError,
    TaskFailedError,
    shown,
)
from qworker.wire.calls import MAX_MEMBERS, Place, gather_id, open_member
from qworker.wire.result import read_end

if TYPE_CHECKING:
    from qworker.app.definition import Definition, TaskApp
    from qworker.app.runs.steps import Steps
    from qworker.client.calls import GroupState
    from qworker.client.plan import Plan
    from qworker.client.queue_ref import QueueRef

__all__ = ["Gather", "GatherPolicy"]

GatherPolicy = Literal["all", "successes"]
_NOT_WAITED_FOR: Final = "not waited for"


class Gather:
    """One gather of one activation: the group of its calls, and the signal that wakes the run when they have ended."""

    def __init__(
        self, steps: Steps, app: TaskApp, calls: Iterable[Any], name: str, policy: GatherPolicy
    ) -> None:
        self.members: Sequence[Any] = tuple(calls)
        if policy not in ("all", "successes"):
            raise InvalidOptionError("policy", f"{shown(policy)} is unknown", "all or successes")
        for number, member in enumerate(self.members):
            if not isinstance(member, Work):
                raise InvalidOptionError(
                    f"call {number} of {name}",
                    f"{shown(member)} is not a call",
                    "write task.call(…)",
                )
        if len(self.members) > MAX_MEMBERS:
            raise InvalidOptionError(
                name, f"has {len(self.members):,} calls", f"at most {MAX_MEMBERS:,}"
            )
        if self.members:
            check_members(self.members, app.namespace)
        self._steps, self._app, self._policy = steps, app, policy
        #: No signal of a user has a # in its name.
        self.signal = "!" + steps.begin_gather(name)
        self._end = f"~{self.signal[1:]}"
        self.group_id = gather_id(steps.id, self.signal)
        if (item := current_item.get()) is not None and self.members:
            item.groups.append(self.group_id)
        #: The queue of the run, or its shard.
        self._place = steps.keys.queue

    @property
    def is_over(self) -> bool:
        """Whether the group is decided, as far as was read."""
        return self._steps.has(self.signal)

    def begin(self, refs: dict[str, QueueRef]) -> Plan[None]:
        """Send the calls; repeated by each activation until the group is decided, and does nothing then."""
        opened, groups = self._opened
        yield from check_limits(opened, groups, [refs[name] for name in opened.sizes])
        keys, queue = self._steps.keys, refs[self._steps.keys.name]
        yield from begin_group(queue, opened, shard=keys.shard, run=self._steps.waiting)

    def queues(self) -> list[str]:
        """Name the queues of the calls, and that of the run."""
        self._opened = self._open()
        return [*self._opened[0].sizes, self._steps.keys.name]

    def park(self) -> None:
        """Park the run until the group is decided."""
        self._steps.sleep(self._end, None, self.signal)

    def returned(self, state: GroupState | None, *, raises: bool) -> list[Any]:
        """Return the values; `raises` the first error among them, rather that of a call that has ended."""
        values = self._values(state)
        errors = [value for value in values if isinstance(value, ResultError)]
        ended = [error for error in errors if getattr(error, "state", "") != _NOT_WAITED_FOR]
        if raises and errors:
            raise (ended or errors)[0]
        return values

    def _values(self, state: GroupState | None) -> list[Any]:
        """Return the value of each call, in order, and an error in the place of each that has none."""
        steps = self._steps
        if state is None:
            raise ResultUnknownError(self._place, self.group_id)
        if len(state.words) != len(self.members):
            raise InvalidOptionError(
                f"gather {self.signal[1:]}",
                f"has {len(self.members):,} calls, and began with {len(state.words):,}",
                "give it a name= of its own if you change its calls",
            )
        values: list[Any] = []
        for number, words in enumerate(state.words):
            if words.startswith((b"ok\n", b"ok ")):
                place = Place(self._place, self.group_id, number)
                value = open_member(words, steps.keyring, steps.namespace, place)
                result_type = self._member_task(number).result_type
                assert result_type is not None
                values.append(result_type.decode(value))
            else:
                values.append(self._error(number, words))
        return values

    def _member_task(self, number: int) -> Definition[..., Any]:
        member = self.members[number]
        return (member.sender if isinstance(member, Call) else member.last).task

    def _error(self, number: int, words: bytes) -> ResultError:
        end = read_end(words)
        member = self._member_task(number)
        where, task, message_id = end.step or (
            member.queue,
            member.name,
            f"{self.group_id}.{number}",
        )
        queue = where.partition("/")[0]
        if end.state == "dead":
            return TaskFailedError(queue, message_id, end.reason, end.error, end.text, task)
        # Empty: a group of successes is decided as soon as one cannot succeed; an operator ended it early.
        return TaskEndedError(queue, message_id, end.state or _NOT_WAITED_FOR, task)

    def _open(self) -> tuple[Opened, list[tuple[str, str]]]:
        app = self._app
        members = [
            first_steps(member, f"{self.group_id}.{number}")
            for number, member in enumerate(self.members)
        ]
        fan = Fan(self._policy, members, Step(queue=self._place, id=self.group_id))
        writer = Writer(app.namespace, app.keyring, outgoing(), sending_of(app))
        groups = [group for member in members for group in groups_of(member)]
        run = (self._place, self._steps.id, self.signal)
        return open_fan(fan, [], writer, run=run), groups
