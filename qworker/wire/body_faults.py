"""Why JSON cannot carry a value, and where in the value that is.

Only for values that were refused: Python walks through the value to find the path.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from qworker.errors import InvalidBodyError, shown
from qworker.wire.nesting import MAX_DEPTH, TOO_DEEP, is_too_deep

__all__ = [
    "BODY",
    "CARRIED",
    "ERRORS",
    "Fault",
    "builtins_of",
    "compare_keys",
    "examine",
    "path_of",
    "problem_of",
]

_DECODER: Final = msgspec.json.Decoder()
ERRORS: Final = (TypeError, ValueError, RecursionError, msgspec.MsgspecError)
BODY: Final = "body"
CARRIED: Final = (
    "a body consists of str, int, finite float, bool, None, list, tuple, set, dict with text keys, datetime, date, "
    "time, timedelta, UUID, Decimal, bytes, Enum, dataclass, msgspec.Struct and pydantic model"
)

_TEXTS: Final = (datetime, date, time, timedelta, UUID, Decimal, bytes, bytearray, memoryview)


def _is_model(value: object) -> bool:
    pydantic: Any = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.BaseModel)


def builtins_of(value: object) -> object:
    """Convert what msgspec does not know: a pydantic model, if the application has imported pydantic."""
    if _is_model(value):
        return value.model_dump(mode="json", by_alias=True)  # type: ignore[attr-defined]
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


class Fault(Exception):  # noqa: N818  # never leaves this module
    """A problem with a value, and the steps from the value outwards to the body."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.steps: list[object] = []


def compare_keys(before: object, after: object) -> None:
    """Raise `Fault` unless all numbers that are keys in one value of builtins are numbers in the other as well."""
    members: Iterable[tuple[object, object, object]]
    if isinstance(before, dict) and isinstance(after, dict):
        numbers = [key for key in before if isinstance(key, (int, float))]
        for key in numbers:
            if key not in after or abs(key) == math.inf:
                _refuse_key(key)
        if numbers and len(after) < len(before):
            raise Fault("has a number and its text as keys, which are one key in JSON")
        members = ((key, member, after[key]) for key, member in before.items() if key in after)
    elif isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        pairs = enumerate(zip(before, after, strict=False))
        members = ((at, one, other) for at, (one, other) in pairs)
    else:
        return
    for step, one, other in members:
        try:
            compare_keys(one, other)
        except Fault as fault:
            fault.steps.append(step)
            raise


def _refuse_key(key: object) -> None:
    raise Fault(
        f"has the key {shown(key, 40)} of type {type(key).__qualname__}; a key must be text"
    )


def examine(value: object, *, number_keys: bool) -> None:
    """Raise `InvalidBodyError` for the first value that JSON cannot carry, if any."""
    try:
        _visit(value, 0, number_keys)
    except Fault as fault:
        raise InvalidBodyError(path_of(fault.steps), fault.problem, CARRIED) from None


def _visit(value: object, depth: int, number_keys: bool) -> None:
    if isinstance(value, Enum):
        value = value.value
    if _is_model(value):
        value = builtins_of(value)
    members = _members(value, number_keys)
    if members is None:
        return _check_scalar(value)
    if depth == MAX_DEPTH:
        raise Fault(TOO_DEEP)
    for step, member in members:
        try:
            _visit(member, depth + 1, number_keys)
        except Fault as fault:
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
            raise Fault(f"is {value}, which JSON cannot carry")
    elif isinstance(value, int):
        _check_integer(value)
    elif isinstance(value, Raw):
        _check_raw(value)
    elif value is not None and not isinstance(value, _TEXTS):
        raise Fault(f"is of type {type(value).__qualname__}, which JSON cannot carry")


def _check_text(text: str, verb: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Fault(
            f"{verb} a lone surrogate (U+{ord(text[error.start]):04X}), which is not text"
        ) from None


def _check_integer(value: int) -> None:
    try:
        str(value)
    except ValueError:
        raise Fault(f"is an integer of {value.bit_length()} bits, too long to write") from None


def _check_raw(raw: Raw) -> None:
    data = bytes(raw)
    try:
        _DECODER.decode(data)
    except ERRORS as error:
        raise Fault(f"is raw JSON that {problem_of(error)}") from None
    if is_too_deep(data):
        raise Fault(f"is raw JSON that {TOO_DEEP}")


_PATH_LENGTH: Final = 120


def path_of(steps: list[object]) -> str:
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
        return BODY + text
    return text[1:]


def problem_of(error: Exception) -> str:
    """Write the error of a decoder as the problem of a body."""
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8"
    if isinstance(error, RecursionError):
        return TOO_DEEP
    text = str(error).replace("`", "")
    # Lower case within a sentence, but JSON stays JSON.
    begin = text[:1].lower() if text[1:2].islower() else text[:1]
    return f"cannot be read: {begin}{text[1:160]}"
