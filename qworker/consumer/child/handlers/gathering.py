"""Reads the values of a group of calls when its callback starts, and makes them its first argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from qworker.app.arguments.failures import Failure
from qworker.client.calls import CallGroupState, read_group
from qworker.errors import InvalidBodyError, InvalidError, ProtectionError, UnknownKeyError
from qworker.wire.calls import MemberRef, open_member
from qworker.wire.result import read_end

if TYPE_CHECKING:
    from qworker.app.task import Task
    from qworker.client.plan import Plan
    from qworker.consumer.child.handlers.preparation import Preparer
    from qworker.consumer.child.leases.delivery import Delivery

__all__ = ["Gathering"]

_encode = msgspec.json.Encoder().encode


class Gathering:
    """Completes the arguments of callbacks."""

    def __init__(self, preparer: Preparer) -> None:
        self._preparer = preparer

    def fill(self, delivery: Delivery) -> bool:
        """Read the values and decode the arguments; False if the message has ended instead. Raises `ServerError`."""
        task = delivery.task
        assert task is not None
        state = task.app.queue(delivery.lease.queue.name).client.run(_read(delivery))
        return self._decode(delivery, task, state)

    async def afill(self, delivery: Delivery) -> bool:
        """Do in async code what `fill` does."""
        task = delivery.task
        assert task is not None
        state = await task.app.aqueue(delivery.lease.queue.name).client.run(_read(delivery))
        return self._decode(delivery, task, state)

    def _decode(
        self, delivery: Delivery, task: Task[..., Any], state: CallGroupState | None
    ) -> bool:
        args, kwargs = delivery.kwargs["args"], delivery.kwargs["kwargs"]
        try:
            if state is None:
                raise InvalidBodyError(
                    "gather",
                    "names a group of calls whose values are gone",
                    "start it again: they live and die with the Redis of the queue",
                )
            values = self._values(delivery, task, state)
            first = _first(delivery.gather, values)
            others = bytes(args)[1:-1].strip()
            given = b"[" + first + (b"," + others if others else b"") + b"]"
            delivery.args, delivery.kwargs = task.signature.decode(Raw(given), kwargs)
        except UnknownKeyError as error:
            return self._preparer.unknown_key(delivery, error)
        except ProtectionError as error:
            return self._preparer.rejected(delivery, error)
        except InvalidError as error:
            return self._preparer.bad_arguments(delivery, error)
        # A parameter that takes any JSON gets the failures as such, too.
        if type(items := delivery.args[0]) is list:
            for number, value in enumerate(values):
                if isinstance(value, Failure) and delivery.gather != "first":
                    items[number] = value
        return True

    def _values(
        self, delivery: Delivery, task: Task[..., Any], state: CallGroupState
    ) -> list[bytes | Failure]:
        queue, group_id = delivery.lease.queue.name, delivery.context().message_id
        values: list[bytes | Failure] = []
        for number, stored in enumerate(state.ends):
            if stored.startswith((b"ok\n", b"ok ")):
                member = MemberRef(queue, group_id, number)
                values.append(open_member(stored, task.app.keyring, task.app.namespace, member))
            else:
                values.append(_failure(stored))
        return values


def _read(delivery: Delivery) -> Plan[CallGroupState | None]:
    return read_group(delivery.lease.queue.keys, delivery.context().message_id)


def _first(policy: str, values: list[bytes | Failure]) -> bytes:
    if policy == "first":
        value = next((value for value in values if isinstance(value, bytes)), None)
        if value is None:
            raise InvalidBodyError("gather", "has no value", "redrive a member of the group")
        return value
    written = [value if isinstance(value, bytes) else _encode(value) for value in values]
    return b"[" + b",".join(written) + b"]"


def _failure(stored: bytes) -> Failure:
    end = read_end(stored)
    queue, task, message_id = end.step or ("", "", "")
    return Failure(
        end.state, end.reason, end.error, end.text, queue.partition("/")[0], task, message_id
    )
