"""Checks of compositions: which calls can be parts, how deep groups may be in groups, and what their queues refuse."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from qworker.app.sender import Call, Then
from qworker.client.follow import NewGroup
from qworker.engine.options import SMALLEST_MAXSIZE
from qworker.errors import BodyTooLargeError, InvalidOptionError
from qworker.wire.names import check_message_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qworker.app.sender import Sender
    from qworker.client.plan import Plan
    from qworker.client.queue_ref import QueueRef


__all__ = [
    "MAX_DEPTH",
    "check_cancel_rest",
    "check_id",
    "check_limits",
    "check_members",
    "check_namespace",
    "check_part",
]

#: Options of a send that only make sense when it is sent at once.
_NOT_LATER: Final = ("eta", "maxlen", "replicas", "fsync")
#: Groups in groups, and what each level adds to the ids of messages.
MAX_DEPTH: Final = 4
_LEVEL: Final = 9
_MAX_ID: Final = 64
#: Messages of a group that cancels the rest: one call notes those of a queue, which takes 10 ms for this many.
_MAX_REST: Final = 10_000


def check_part(
    sender: Sender[Any, Any],
    where: str,
    namespace: str,
    *,
    first: bool = False,
    member: bool = False,
) -> None:
    """Raise `InvalidOptionError` for a call that cannot be a part of a composition.

    `first`: of a chain, which is sent at once; `member`: of a group, which can be a run and can have a group.
    """
    task, options = sender.task, sender.options_of_sends
    check_namespace(where, task.app.namespace, namespace)
    if task.task_options.batch is not None:
        raise InvalidOptionError(where, "takes batches", "take tasks of one message")
    if task.is_run and not member:
        raise InvalidOptionError(where, "is a run", "call its steps in the run instead")
    if not (first or member) and callable(task.task_options.limit_key):
        raise InvalidOptionError(
            where,
            "has a limit_key that depends on its arguments, of which the first is not known yet",
            "take a task whose limit_key is a name",
        )
    if not (first or member) and options.group is None and callable(task.task_options.group):
        raise InvalidOptionError(
            where,
            "has a group that depends on its arguments, of which the first is not known yet",
            'name the group: .options(group="acme").then(…)',
        )
    for name in ("unique", *(() if first else _NOT_LATER)):
        if getattr(options, name):
            raise InvalidOptionError(
                where, f"has the option {name}", "leave it out of compositions"
            )


def check_namespace(where: str, namespace: str, others: str) -> None:
    """Raise `InvalidOptionError` for a part that would be sent into the namespace of the others, not its own."""
    if namespace != others:
        raise InvalidOptionError(
            where,
            f"is of the namespace {namespace!r}, the others are of {others!r}",
            "take tasks of one app",
        )


def check_limits(
    opened: NewGroup, groups: Iterable[tuple[str, str]], refs: Iterable[QueueRef]
) -> Plan[None]:
    """Raise what the queues of a group of calls, `refs`, refuse: bodies over maxsize, groups in divided queues."""
    by_name = {ref.keys.name: ref for ref in refs}
    for name, group in groups:
        if name in by_name:
            yield from by_name[name].check_undivided(group)
    for ref in by_name.values():
        largest = opened.sizes[ref.keys.name]
        if largest > SMALLEST_MAXSIZE:
            maxsize = yield from ref.maxsize()
            if largest > maxsize:
                raise BodyTooLargeError(f"a call of queue {ref.keys.name!r}", largest, maxsize)


def check_members(members: Sequence[Any], namespace: str) -> int:
    """Check the members of a group of calls; returns how deep groups are in it. Raises `InvalidOptionError`."""
    depth = 1 + max(getattr(member, "depth", 0) for member in members)
    if depth > MAX_DEPTH:
        raise InvalidOptionError(
            "group", f"has groups in groups, {depth} deep", f"at most {MAX_DEPTH}"
        )
    for number, member in enumerate(members):
        where = f"call {number} of the group"
        if isinstance(member, Call | Then):
            check_part(
                member.sender,
                f"{where}, {member.sender.task.name!r}",
                namespace,
                member=isinstance(member, Call),
            )
            member.sender.check_keeps()
            continue
        check_namespace(where, member.app.namespace, namespace)
        if member.last.task.result_type is None:
            member.last.check_keeps()
    return depth


def check_cancel_rest(members: Sequence[Any]) -> None:
    """Raise `InvalidOptionError` if the messages of a group cannot be named when its first call has succeeded."""
    for number, member in enumerate(members):
        if getattr(member, "depth", 0):
            raise InvalidOptionError(
                "cancel_rest",
                f"does not reach call {number} of the group, which is or has a group itself",
                "give it calls and chains of calls, or leave cancel_rest out",
            )
    messages = sum(getattr(member, "length", 1) for member in members)
    if messages > _MAX_REST:
        raise InvalidOptionError(
            "cancel_rest",
            f"has to cancel {messages:,} calls, those of chains among them",
            f"at most {_MAX_REST:,}; take fewer or shorter chains",
        )


def check_id(group_id: str, depth: int) -> str:
    """Return the id of a group that the caller has chosen. Raises `InvalidNameError` and `InvalidOptionError`."""
    check_message_id(group_id, "id")
    most = _MAX_ID - _LEVEL * depth
    if len(group_id) > most:
        raise InvalidOptionError(
            "id",
            f"has {len(group_id)} characters",
            f"at most {most} here: the ids of the calls begin with it",
        )
    return group_id
