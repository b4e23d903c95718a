"""The fast path of calls by position: one decoder for all tasks finds the task and converts its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union

import msgspec
from msgspec.structs import astuple

from qworker.app.arguments.binding import NO_KWARGS, Signature
from qworker.wire.codec import SHORT, is_too_deep

if TYPE_CHECKING:
    from qworker.app.arguments.binding import CallByPosition

__all__ = ["Calls"]

Owner = TypeVar("Owner")


class Calls(Generic[Owner]):
    """Calls by position of several signatures, each with its owner, as one tagged union of msgspec.

    It decodes a call once instead of three times (body, arguments, their types). Everything else, and a call that does
    not fit its signature, is left to `Signature.decode`, which names the problem.
    """

    def __init__(self, signatures: Mapping[Signature, Owner]) -> None:
        self._owners = {
            signature.call_type: owner
            for signature, owner in signatures.items()
            if signature.call_type is not None
        }
        types: Any = Union[tuple(self._owners)] if self._owners else None  # noqa: UP007
        self._decode: Callable[[bytes], CallByPosition] = msgspec.json.Decoder(types).decode

    def read(self, body: bytes) -> tuple[Owner, tuple[Any, ...]] | None:
        """Return the owner and the arguments of a call; None to leave it to the signature. Raises nothing."""
        try:
            call = self._decode(body)
            if call.kwargs is not NO_KWARGS or (len(body) > SHORT and is_too_deep(body)):
                return None
            return self._owners[type(call)], astuple(call.args)
        except BaseException:  # noqa: BLE001 - from code of a user's type; the general path meets and names it again
            return None
