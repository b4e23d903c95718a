"""Bodies: Python values as JSON and back, and the body of a call, which names its task.

JSON carries str, int of any size, finite float, bool, None, list and object. Tuples and sets become lists; datetime,
date, time, timedelta, UUID, Decimal and bytes become text, an Enum its value, dataclasses and Structs objects; the
types of the handler restore them. Other values are refused on sending, with their path. Never pickle.

msgspec alone writes NaN as null, turns the key 1 into "1" and has no depth limit. Checking every value in Python would
cost ten times the encoding. Instead the JSON is decoded and compared with the value as builtins, three calls in C; only
if they differ (a fault, or a harmless tuple) Python walks through the value to find the path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from qworker.errors import BodyTooLargeError, InvalidBodyError
from qworker.wire.body_faults import (
    BODY,
    CARRIED,
    ERRORS,
    Fault,
    builtins_of,
    compare_keys,
    examine,
    path_of,
    problem_of,
)
from qworker.wire.nesting import MAX_DEPTH, SHORT, TOO_DEEP, is_too_deep

__all__ = [
    "MAX_DEPTH",
    "SHORT",
    "StoredCall",
    "check_number_keys",
    "check_size",
    "decode",
    "decode_call",
    "encode",
    "encode_call",
    "is_too_deep",
]

_NO_ARGS: Final = Raw(b"[]")
_NO_KWARGS: Final = Raw(b"{}")
_NO_STEPS: Final = Raw(b"")


class StoredCall(Struct, frozen=True, gc=False):
    """The body of a call: `args` (an array) and `kwargs` (an object) are still JSON, as are the steps of a chain that
    follow (`then`, empty if none do). `gather`: the values of a group of calls, by its policy, go before `args`.
    """

    task: str
    args: Raw = _NO_ARGS
    kwargs: Raw = _NO_KWARGS
    then: Raw = _NO_STEPS
    gather: str = ""


_ENCODER: Final = msgspec.json.Encoder(enc_hook=builtins_of)
_DECODER: Final = msgspec.json.Decoder()
_CALL_DECODER: Final = msgspec.json.Decoder(StoredCall)

#: Types whose values come back from JSON as they were; a float may be infinite.
_CARRIED_AS_THEY_ARE: Final = frozenset((str, int, bool, type(None)))
_JSON: Final = "a body is JSON text in UTF-8"
_CALL: Final = 'a call body is {"task": "name", "args": [...], "kwargs": {...}}'


def encode(value: object, *, number_keys: bool = False, carried: bool = False) -> bytes:
    """Write a value as JSON; integers are exact up to the 4,300 digits that Python writes.

    `number_keys`: accept numbers as keys, which JSON turns into text (see `check_number_keys`). `carried`: JSON carries
    the value as it is, if it can be written.

    Raises `InvalidBodyError`, with the path of the value (`items[3].price`) as its field, for NaN and infinity, lone
    surrogates, numbers as keys, nesting over `MAX_DEPTH`, and types that JSON cannot carry. O(size).
    """
    try:
        data = _ENCODER.encode(value)
    except ERRORS as error:
        examine(value, number_keys=number_keys)
        raise InvalidBodyError(BODY, problem_of(error), CARRIED) from error
    if is_too_deep(data) or not (carried or _is_carried(value, data, number_keys=number_keys)):
        examine(value, number_keys=number_keys)
    return data


def encode_call(
    task: str, args: Sequence[object], kwargs: Mapping[str, object], *, number_keys: bool = False
) -> bytes:
    """Write the body of the call `task(*args, **kwargs)`. Options and errors as for `encode`."""
    call: dict[str, object] = {"task": task, "args": list(args)}
    if kwargs:
        call["kwargs"] = kwargs
    carried = not kwargs and _CARRIED_AS_THEY_ARE.issuperset(map(type, args))
    return encode(call, number_keys=number_keys, carried=carried)


def check_number_keys(given: object, read: object) -> None:
    """Raise `InvalidBodyError` unless all numbers that are keys in `given` are numbers in `read` as well.

    `read` is `given` written with `number_keys` and converted back by the task's types.
    """
    try:
        compare_keys(_to_builtins(given), _to_builtins(read))
    except Fault as fault:
        raise InvalidBodyError(path_of(fault.steps), fault.problem, CARRIED) from None


def decode(data: bytes) -> Any:
    """Read a JSON body without types. Raises `InvalidBodyError` for other text, and for nesting over `MAX_DEPTH`."""
    try:
        value = _DECODER.decode(data)
    except ERRORS as error:
        raise InvalidBodyError(BODY, problem_of(error), _JSON) from error
    if is_too_deep(data):
        raise InvalidBodyError(BODY, TOO_DEEP, _JSON)
    return value


def decode_call(data: bytes) -> StoredCall:
    """Read the body of a call. Missing args and kwargs are empty; other fields are ignored.

    Raises `InvalidBodyError` for anything else, and for nesting over `MAX_DEPTH`. Checks only that args and kwargs are
    well-formed: the task's signature decodes them.
    """
    try:
        call = _CALL_DECODER.decode(data)
    except ERRORS as error:
        raise InvalidBodyError(BODY, problem_of(error), _CALL) from error
    args, kwargs = call.args, call.kwargs
    if args is not _NO_ARGS and memoryview(args)[0] != 0x5B:
        raise InvalidBodyError("args", "is not an array", _CALL)
    if kwargs is not _NO_KWARGS and memoryview(kwargs)[0] != 0x7B:
        raise InvalidBodyError("kwargs", "is not an object", _CALL)
    if len(data) > SHORT and is_too_deep(data):
        raise InvalidBodyError(BODY, TOO_DEEP, _CALL)
    return call


def check_size(data: bytes, maxsize: int) -> None:
    """Raise `BodyTooLargeError` for a body of more than `maxsize` bytes."""
    if len(data) > maxsize:
        raise BodyTooLargeError(BODY, len(data), maxsize)


def _is_carried(value: object, data: bytes, *, number_keys: bool) -> bool:
    """Say whether `data` decodes to the value. Also False for values with tuples, NaN, number keys or raw JSON."""
    try:
        plain = msgspec.to_builtins(value, str_keys=number_keys, enc_hook=builtins_of)
        return bool(_DECODER.decode(data) == plain)
    except ERRORS:
        return False


def _to_builtins(value: object) -> object:
    """Convert a value to builtins; numbers as keys stay numbers."""
    return msgspec.to_builtins(
        value,
        enc_hook=lambda part: decode(bytes(part)) if isinstance(part, Raw) else builtins_of(part),
    )
