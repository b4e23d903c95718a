"""Reading pickles that others wrote, without running what is in them.

A pickle is a program: `pickle.loads` on foreign bytes runs any code that they name. Here its instructions are looked
at first: only those are let through that build plain values, and the only classes that may be named are sets, `Decimal`
and those of `datetime`, whose constructors do nothing but check their arguments.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, Final

__all__ = ["UnsafePickleError", "read_plain"]

_PLAIN: Final = frozenset(
    {
        *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP"),
        *("NONE", "NEWTRUE", "NEWFALSE", "INT", "LONG", "LONG1", "LONG4"),
        *("BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
        *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
        *(
            "EMPTY_TUPLE",
            "TUPLE",
            "TUPLE1",
            "TUPLE2",
            "TUPLE3",
            "EMPTY_SET",
            "ADDITEMS",
            "FROZENSET",
        ),
        *("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"),
        # These name and call: what may be named is up to `_Reader.find_class`.
        *("GLOBAL", "STACK_GLOBAL", "REDUCE"),
    }
)
_CLASSES: Final = frozenset(
    {
        *(("datetime", name) for name in ("datetime", "date", "time", "timedelta", "timezone")),
        ("decimal", "Decimal"),
        # Protocol 3 has no instructions for these. No bytearray: called with a number it takes that much memory.
        ("builtins", "set"),
        ("builtins", "frozenset"),
    }
)
#: Values that one pickle may hold: a short one that refers to itself over and over stands for any number.
_MOST_VALUES: Final = 1_000_000


class UnsafePickleError(Exception):
    """A pickle that is more than plain values, or none at all; the text says what was found."""


def read_plain(data: bytes) -> Any:
    """Read a pickle of plain values: None, bool, numbers, text, bytes, list, tuple, set, dict, dates and times.

    Raises `UnsafePickleError` for anything else, before anything of it has run.
    """
    try:
        _look_through(data)
        value = _Reader(io.BytesIO(data)).load()
        _count(value)
    except UnsafePickleError:
        raise
    except Exception as error:  # Nonsense in a pickle raises anything.
        raise UnsafePickleError(
            f"cannot be read ({type(error).__name__}: {error})"[:200]
        ) from error
    return value


def _look_through(data: bytes) -> None:
    """Raise `UnsafePickleError` for an instruction that plain values do without; nothing runs."""
    texts, named = ["", ""], ""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "GLOBAL":
            named = str(argument).replace(" ", ".")
        elif opcode.name == "STACK_GLOBAL":
            # Its two texts are the last ones, unless they stand for themselves in the memo: then the name is a guess.
            named = ".".join(texts)
        elif isinstance(argument, str):
            texts = [texts[1], argument]
        if opcode.name not in _PLAIN:
            raise UnsafePickleError(f"holds {_shown(named) or 'an object'} ({opcode.name})")


def _shown(name: str) -> str:
    return ascii(name)[1:-1][:120]


class _Reader(pickle.Unpickler):
    """An Unpickler that knows the classes of `_CLASSES` and no other."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that does no harm. Raises `UnsafePickleError`."""
        if (module, name) not in _CLASSES:
            raise UnsafePickleError(f"holds {_shown(f'{module}.{name}')}")
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        """Refuse references to things outside."""
        raise UnsafePickleError("refers to something outside of it")


def _count(value: Any) -> None:
    """Raise `UnsafePickleError` where the value, written out, would be larger than any that is meant."""
    left, waiting = _MOST_VALUES, [value]
    while waiting:
        each = waiting.pop()
        left -= 1
        if isinstance(each, dict):
            waiting += [*each, *each.values()]
        elif isinstance(each, (list, tuple, set, frozenset)):
            waiting += each
        if len(waiting) > left:
            raise UnsafePickleError(f"stands for more than {_MOST_VALUES:,} values")
