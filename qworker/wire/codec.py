"""Bodies: Python values as JSON and back, and the body of a call, which names its task.

JSON carries str, int of any size, finite float, bool, None, list and object. Tuples and sets become lists; datetime,
date, time, timedelta, UUID, Decimal and bytes become text, an Enum its value, dataclasses and Structs objects; the
types of the handler restore them. Other values are refused on sending, with their path. Never pickle.

msgspec alone writes NaN as null, turns the key 1 into "1" and has no depth limit. Checking every value in Python would
cost ten times the encoding. Instead the JSON is decoded and compared with the value as builtins, three calls in C; only
if they differ (a fault, or a harmless tuple) Python walks through the value to find the path.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from qworker.errors import BodyTooLargeError, InvalidBodyError, shown

__all__ = [
    "MAX_DEPTH",
    "SHORT",
    "Call",
    "check_number_keys",
    "check_size",
    "decode",
    "decode_call",
    "encode",
    "encode_call",
    "is_too_deep",
]

#: The deepest nesting of a body. A call uses two levels: the call itself, and its args or kwargs.
MAX_DEPTH: Final = 64
#: A body of up to this many bytes cannot be too deep: 65 levels take 65 opening and 65 closing brackets.
SHORT: Final = 2 * MAX_DEPTH

_NO_ARGS: Final = Raw(b"[]")
_NO_KWARGS: Final = Raw(b"{}")
_NO_STEPS: Final = Raw(b"")


class Call(Struct, frozen=True, gc=False):
    """The body of a call: `args` (an array) and `kwargs` (an object) are still JSON, as are the steps of a chain that
    follow (`then`, empty if none do). `gather`: the values of a group of calls, by its policy, go before `args`.
    """

    task: str
    args: Raw = _NO_ARGS
    kwargs: Raw = _NO_KWARGS
    then: Raw = _NO_STEPS
    gather: str = ""


_TEXTS: Final = (datetime, date, time, timedelta, UUID, Decimal, bytes, bytearray, memoryview)


def _is_model(value: object) -> bool:
    pydantic: Any = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.BaseModel)


def _builtins_of(value: object) -> object:
    """Convert what msgspec does not know: a pydantic model, if the application has imported pydantic."""
    if _is_model(value):
        return value.model_dump(mode="json", by_alias=True)  # type: ignore[attr-defined]
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_builtins_of)
_DECODER: Final = msgspec.json.Decoder()
_CALL_DECODER: Final = msgspec.json.Decoder(Call)

_ERRORS: Final = (TypeError, ValueError, RecursionError, msgspec.MsgspecError)

_BODY: Final = "body"
_CARRIED: Final = (
    "a body consists of str, int, finite float, bool, None, list, tuple, set, dict with text keys, datetime, date, "
    "time, timedelta, UUID, Decimal, bytes, Enum, dataclass, msgspec.Struct and pydantic model"
)
#: Types whose values come back from JSON as they were; a float may be infinite.
_CARRIED_AS_THEY_ARE: Final = frozenset((str, int, bool, type(None)))
_TOO_DEEP: Final = f"is nested deeper than {MAX_DEPTH} levels"
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
    except _ERRORS as error:
        _examine(value, number_keys=number_keys)
        raise InvalidBodyError(_BODY, _problem(error), _CARRIED) from error
    if is_too_deep(data) or not (carried or _is_carried(value, data, number_keys=number_keys)):
        _examine(value, number_keys=number_keys)
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
        _compare_keys(_to_builtins(given), _to_builtins(read))
    except _Fault as fault:
        raise InvalidBodyError(_path(fault.steps), fault.problem, _CARRIED) from None


def decode(data: bytes) -> Any:
    """Read a JSON body without types. Raises `InvalidBodyError` for other text, and for nesting over `MAX_DEPTH`."""
    try:
        value = _DECODER.decode(data)
    except _ERRORS as error:
        raise InvalidBodyError(_BODY, _problem(error), _JSON) from error
    if is_too_deep(data):
        raise InvalidBodyError(_BODY, _TOO_DEEP, _JSON)
    return value


def decode_call(data: bytes) -> Call:
    """Read the body of a call. Missing args and kwargs are empty; other fields are ignored.

    Raises `InvalidBodyError` for anything else, and for nesting over `MAX_DEPTH`. Checks only that args and kwargs are
    well-formed: the task's signature decodes them.
    """
    try:
        call = _CALL_DECODER.decode(data)
    except _ERRORS as error:
        raise InvalidBodyError(_BODY, _problem(error), _CALL) from error
    args, kwargs = call.args, call.kwargs
    if args is not _NO_ARGS and memoryview(args)[0] != 0x5B:
        raise InvalidBodyError("args", "is not an array", _CALL)
    if kwargs is not _NO_KWARGS and memoryview(kwargs)[0] != 0x7B:
        raise InvalidBodyError("kwargs", "is not an object", _CALL)
    if len(data) > SHORT and is_too_deep(data):
        raise InvalidBodyError(_BODY, _TOO_DEEP, _CALL)
    return call


def check_size(data: bytes, maxsize: int) -> None:
    """Raise `BodyTooLargeError` for a body of more than `maxsize` bytes."""
    if len(data) > maxsize:
        raise BodyTooLargeError(_BODY, len(data), maxsize)


class _Fault(Exception):  # noqa: N818  # never leaves this module
    """A problem with a value, and the steps from the value outwards to the body."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.steps: list[object] = []


def _is_carried(value: object, data: bytes, *, number_keys: bool) -> bool:
    """Say whether `data` decodes to the value. Also False for values with tuples, NaN, number keys or raw JSON."""
    try:
        plain = msgspec.to_builtins(value, str_keys=number_keys, enc_hook=_builtins_of)
        return bool(_DECODER.decode(data) == plain)
    except _ERRORS:
        return False


def _to_builtins(value: object) -> object:
    """Convert a value to builtins; numbers as keys stay numbers."""
    return msgspec.to_builtins(
        value,
        enc_hook=lambda part: decode(bytes(part)) if isinstance(part, Raw) else _builtins_of(part),
    )


def _compare_keys(before: object, after: object) -> None:
    members: Iterable[tuple[object, object, object]]
    if isinstance(before, dict) and isinstance(after, dict):
        numbers = [key for key in before if isinstance(key, (int, float))]
        for key in numbers:
            if key not in after or abs(key) == math.inf:
                _refuse_key(key)
        if numbers and len(after) < len(before):
            raise _Fault("has a number and its text as keys, which are one key in JSON")
        members = ((key, member, after[key]) for key, member in before.items() if key in after)
    elif isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        pairs = enumerate(zip(before, after, strict=False))
        members = ((at, one, other) for at, (one, other) in pairs)
    else:
        return
    for step, one, other in members:
        try:
            _compare_keys(one, other)
        except _Fault as fault:
            fault.steps.append(step)
            raise


def _refuse_key(key: object) -> None:
    raise _Fault(
        f"has the key {shown(key, 40)} of type {type(key).__qualname__}; a key must be text"
    )


def _examine(value: object, *, number_keys: bool) -> None:
    """Raise `InvalidBodyError` for the first value that JSON cannot carry, if any."""
    try:
        _visit(value, 0, number_keys)
    except _Fault as fault:
        raise InvalidBodyError(_path(fault.steps), fault.problem, _CARRIED) from None


def _visit(value: object, depth: int, number_keys: bool) -> None:
    if isinstance(value, Enum):
        value = value.value
    if _is_model(value):
        value = _builtins_of(value)
    members = _members(value, number_keys)
    if members is None:
        return _check_scalar(value)
    if depth == MAX_DEPTH:
        raise _Fault(_TOO_DEEP)
    for step, member in members:
        try:
            _visit(member, depth + 1, number_keys)
        except _Fault as fault:
            fault.steps.append(step)
            raise
    return None


def _members(value: object, number_keys: bool) -> Iterable[tuple[object, object]] | None:
    """List the steps to the members of a container, with the members; None for a scalar."""
    if isinstance(value, dict):
        _check_keys(value, number_keys)
        return value.items()
    if isinstance(value, (list, tuple, set, frozenset)):
        return enumerate(value)
    names: Iterable[tuple[str, str]]
    if isinstance(value, Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = ((field.name, field.name) for field in dataclasses.fields(value))
    else:
        return None
    fields = ((written, getattr(value, name, msgspec.UNSET)) for written, name in names)
    return [(written, member) for written, member in fields if member is not msgspec.UNSET]


def _check_keys(members: dict[object, object], number_keys: bool) -> None:
    for key in members:
        text = key.value if isinstance(key, Enum) else key
        if isinstance(text, str):
            _check_text(text, "has a key with")
        elif number_keys and type(text) is not bool and isinstance(text, (int, float)):
            _check_scalar(text)
        elif not isinstance(text, _TEXTS):
            _refuse_key(key)


def _check_scalar(value: object) -> None:
    if isinstance(value, str):
        _check_text(value, "holds")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _Fault(f"is {value}, which JSON cannot carry")
    elif isinstance(value, int):
        _check_integer(value)
    elif isinstance(value, Raw):
        _check_raw(value)
    elif value is not None and not isinstance(value, _TEXTS):
        raise _Fault(f"is of type {type(value).__qualname__}, which JSON cannot carry")


def _check_text(text: str, verb: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Fault(
            f"{verb} a lone surrogate (U+{ord(text[error.start]):04X}), which is not text"
        ) from None


def _check_integer(value: int) -> None:
    try:
        str(value)
    except ValueError:
        raise _Fault(f"is an integer of {value.bit_length()} bits, too long to write") from None


def _check_raw(raw: Raw) -> None:
    try:
        decode(bytes(raw))
    except InvalidBodyError as error:
        raise _Fault(f"is raw JSON that {error.problem}") from None


_PATH_LENGTH: Final = 120


def _path(steps: list[object]) -> str:
    """Write steps, innermost first, as `args[0].items[3].price`."""
    text = ""
    for step in reversed(steps):
        if isinstance(step, int):
            text += f"[{step}]"
        elif isinstance(step, str) and step.isascii() and step.isidentifier():
            text += f".{step}"
        else:
            text += f"[{shown(step, 40)}]"
    if len(text) > _PATH_LENGTH:
        text = text[:_PATH_LENGTH] + "..."
    if not text.startswith("."):
        return _BODY + text
    return text[1:]


def _problem(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8"
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    text = str(error).replace("`", "")
    # Lower case within a sentence, but JSON stays JSON.
    begin = text[:1].lower() if text[1:2].islower() else text[:1]
    return f"cannot be read: {begin}{text[1:160]}"


_STRING: Final = re.compile(rb'"[^"]*"')
_ALL_BUT_MARKS: Final = bytes(set(range(256)) - set(b'"[]{}'))
_BRACES_AS_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")


def is_too_deep(data: bytes) -> bool:
    """Say whether well-formed JSON is nested over `MAX_DEPTH`; O(size), in C, and O(1) up to `SHORT` bytes."""
    if len(data) <= SHORT or data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Without escapes every quote begins or ends a string. Removing empty strings first is safe: two neighbouring quotes
    # do not change the parity of the others.
    brackets = data.translate(_BRACES_AS_BRACKETS, _ALL_BUT_MARKS).replace(b'""', b"")
    if b'"' in brackets:
        brackets = _STRING.sub(b"", brackets)
    # Each pass removes the innermost level: in well-formed JSON brackets are paired.
    for _ in range(MAX_DEPTH):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)
