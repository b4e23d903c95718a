"""Calls that a run makes side by side: they are a group of calls, which the run follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from qworker.app.composition import first_steps, sending_of
from qworker.app.composition_checks import check_limits, check_members
from qworker.app.runs.items import current_item
from qworker.app.sender import Call
from qworker.app.trace import outgoing
from qworker.app.work import Work
from qworker.client.calls import begin_group, read_group
from qworker.client.follow import NewGroup, open_fan
from qworker.client.steps import ChainStep, Fan, MessageWriter, groups_of
from qworker.engine.calls import abandon
from qworker.errors import (
    InvalidOptionError,
    ResultError,
    ResultTimeoutError,
    ResultUnknownError,
    TaskEndedError,
    TaskFailedError,
    UnknownKeyError,
    shown,
)
from qworker.wire.calls import MAX_MEMBERS, MemberRef, gather_id, open_member
from qworker.wire.result import read_end

if TYPE_CHECKING:
    from qworker.app.definition import Definition, TaskApp
    from qworker.app.runs.steps import Steps
    from qworker.client.calls import CallGroupState
    from qworker.client.plan import Plan
    from qworker.client.queue_ref import QueueRef
    from qworker.engine.run import Recalled

__all__ = ["Gather", "GatherPolicy"]

GatherPolicy = Literal["all", "successes"]
_NOT_WAITED_FOR: Final = "not waited for"


class Gather:
    """One gather of one activation: the group of its calls, and the signal that wakes the run when they have ended."""

    def __init__(
        self,
        steps: Steps,
        app: TaskApp,
        calls: Iterable[Any],
        name: str,
        policy: GatherPolicy,
        timeout_ms: int | None,
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
                name,
                f"has {len(self.members):,} calls",
                f"at most {MAX_MEMBERS:,}; gather several times, or let each call do more",
            )
        if self.members:
            check_members(self.members, app.namespace)
        self._steps, self._app, self._policy = steps, app, policy
        self._timeout_ms = timeout_ms
        #: No signal of a user has a # in its name.
        self.signal = "!" + steps.begin_gather(name)
        self._end = f"~{self.signal[1:]}"
        self.group_id = gather_id(steps.id, self.signal)
        if (item := current_item.get()) is not None and self.members:
            item.groups.append(self.group_id)
        #: The queue of the run, or its shard.
        self._queue = steps.keys.queue

    def returned(self, ref_of: Callable[[str], QueueRef], *, raises: bool) -> Plan[list[Any]]:
        """Return the values; parks the run until the group is decided, or its time is over.

        `raises` the first error among them; a timeout goes before the error of a call. `ref_of` opens a
        queue by its name.
        """
        steps = self._steps
        yield from self._recall(self.signal)
        if not self.members:
            return []
        if self._timeout_ms is not None:
            yield from self._recall(self._end)
        if not steps.has(self.signal):
            yield from self._begin(ref_of)
            self.park()
            # Later activations do not wait for calls that have not ended by now, either.
            yield abandon(steps.keys, [self.group_id], "cancelled")
        state = yield from read_group(steps.keys, self.group_id)
        values = self._values(state)
        if raises:
            self._raise_first(values)
        return values

    def park(self) -> None:
        """Park the run until the group is decided; return once its time is over."""
        self._steps.sleep(self._end, self._timeout_ms, self.signal)

    def _recall(self, step: str) -> Plan[None]:
        if (command := self._steps.unread(step)) is not None:
            recalled: Recalled = yield command
            self._steps.learn(recalled)

    def _begin(self, ref_of: Callable[[str], QueueRef]) -> Plan[None]:
        """Send the calls; repeated by each activation until the group is decided, and does nothing then."""
        opened, groups = self._open()
        yield from check_limits(opened, groups, [ref_of(name) for name in opened.sizes])
        keys = self._steps.keys
        yield from begin_group(ref_of(keys.name), opened, shard=keys.shard, run=self._steps.waiting)

    def _raise_first(self, values: list[Any]) -> None:
        errors = [value for value in values if isinstance(value, ResultError)]
        late = [error for error in errors if isinstance(error, ResultTimeoutError)]
        ended = [error for error in errors if getattr(error, "state", "") != _NOT_WAITED_FOR]
        if errors:
            raise (late or ended or errors)[0]

    def _values(self, state: CallGroupState | None) -> list[Any]:
        """Return the value of each call, in order, and an error in the place of each that has none."""
        if state is None:
            raise ResultUnknownError(self._queue, self.group_id)
        if len(state.ends) != len(self.members):
            raise InvalidOptionError(
                f"gather {self.signal[1:]}",
                f"has {len(self.members):,} calls, and began with {len(state.ends):,}",
                "give it a name= of its own if you change its calls",
            )
        late_after = self._late_after(state)
        values: list[Any] = []
        for number, stored in enumerate(state.ends):
            if stored.startswith((b"ok\n", b"ok ")):
                member = MemberRef(self._queue, self.group_id, number)
                value = self._opened(stored, member)
                result_type = self._member_task(number).result_type
                assert result_type is not None
                values.append(result_type.decode(value))
            elif late_after is not None and not stored:
                message_id = f"{self.group_id}.{number}"
                queue = self._member_task(number).queue
                values.append(ResultTimeoutError(queue, message_id, late_after))
            else:
                values.append(self._error(number, stored))
        return values

    def _opened(self, stored: bytes, member: MemberRef) -> bytes:
        steps = self._steps
        try:
            return open_member(stored, steps.keyring, steps.namespace, member)
        except UnknownKeyError as error:
            raise steps.key_missing(error) from error

    def _late_after(self, state: CallGroupState) -> float | None:
        """Seconds after which its time was over; None if it was decided before."""
        due_ms = self._steps.due_ms(self._end)
        if self._timeout_ms is None or due_ms is None or (state.over_ms or 0) < due_ms:
            return None
        return self._timeout_ms / 1000

    def _member_task(self, number: int) -> Definition[..., Any]:
        member = self.members[number]
        return (member.sender if isinstance(member, Call) else member.last).task

    def _error(self, number: int, stored: bytes) -> ResultError:
        end = read_end(stored)
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

    def _open(self) -> tuple[NewGroup, list[tuple[str, str]]]:
        app = self._app
        members = [
            first_steps(member, f"{self.group_id}.{number}")
            for number, member in enumerate(self.members)
        ]
        fan = Fan(self._policy, members, ChainStep(queue=self._queue, id=self.group_id))
        writer = MessageWriter(app.namespace, app.keyring, outgoing(), sending_of(app))
        groups = [group for member in members for group in groups_of(member)]
        run = (self._queue, self._steps.id, self.signal)
        return open_fan(fan, [], writer, run=run), groups
