"""Reads pickles that others wrote, without running their code.

A pickle is a program: `pickle.loads` on foreign bytes runs any code that they name. Here its instructions are checked
first: only those that build plain values are allowed, and the only classes are sets, `Decimal` and those of `datetime`,
whose constructors only check their arguments.

A short pickle can also expand to a large or slow value, so everything is bounded: instructions, the texts and values of
the result when it is written out (one text may be in it any number of times), arguments of constructors, and keys.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, ClassVar, Final

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
        # These name and call classes, which `_Reader.find_class` restricts.
        *("GLOBAL", "STACK_GLOBAL", "REDUCE"),
    }
)
_CLASSES: Final = frozenset(
    {
        *(("datetime", name) for name in ("datetime", "date", "time", "timedelta", "timezone")),
        ("decimal", "Decimal"),
        # Protocol 3 has no instructions for these. No bytearray: called with a number, it allocates so much memory.
        ("builtins", "set"),
        ("builtins", "frozenset"),
    }
)
#: Most values and instructions of one pickle: a short one that refers to itself repeatedly expands to any number.
_MAX_VALUES: Final = 1_000_000
#: Most bytes of texts and numbers in the result and in arguments of constructors.
_MAX_BYTES: Final = 64 * 1024 * 1024
#: Most keys with the same hash. Hashes of texts are salted, but those of numbers and tuples can be chosen, and n keys
#: with one hash take n² comparisons.
_MAX_ALIKE: Final = 500
#: Types of keys: hashing these costs no more than their length. A tuple of tuples can take forever.
_KEYS: Final = (str, bytes, int, float, type(None), Decimal, date, time, timedelta)
#: Integers below the modulus have distinct hashes.
_OWN_HASH: Final = sys.hash_info.modulus


class UnsafePickleError(Exception):
    """A pickle of more than plain values, or bytes that are not a pickle; the text says what they hold."""


def read_plain(data: bytes) -> Any:
    """Read a pickle of plain values: None, bool, numbers, text, bytes, list, tuple, set, dict, dates and times.

    Raises `UnsafePickleError` for anything else, before any of it has run.
    """
    try:
        _check_instructions(data)
        value = _Reader(data).load()
        _count(value)
    except UnsafePickleError:
        raise
    except Exception as error:  # A malformed pickle can raise anything.
        raise UnsafePickleError(
            f"cannot be read ({type(error).__name__}: {error})"[:200]
        ) from error
    return value


def _check_instructions(data: bytes) -> None:
    """Raise `UnsafePickleError` for an instruction that plain values do not need; nothing runs."""
    texts, named = ["", ""], ""
    for number, (opcode, argument, at) in enumerate(pickletools.genops(data)):
        if number >= _MAX_VALUES:
            raise UnsafePickleError(f"has more than {_MAX_VALUES:,} instructions")
        if (
            opcode.name == "FRAME"
            and isinstance(argument, int)
            and argument > len(data) - (at or 0)
        ):
            raise UnsafePickleError("cannot be read (a frame extends beyond its end)")
        if opcode.name == "GLOBAL":
            named = str(argument).replace(" ", ".")
        elif opcode.name == "STACK_GLOBAL":
            # Its two texts are the last ones, unless they come from the memo: then the name is a guess.
            named = ".".join(texts)
        elif isinstance(argument, str):
            texts = [texts[1], argument]
        if opcode.name not in _PLAIN:
            raise UnsafePickleError(f"holds {_shown(named) or 'an object'} ({opcode.name})")


def _shown(name: str) -> str:
    return ascii(name)[1:-1][:120]


class _Reader(pickle._Unpickler):
    """An Unpickler that knows only `_CLASSES`, and checks keys before they are hashed.

    The one in Python, because the one in C has no such hook, and allocates as many memo entries as the largest index:
    `LONG_BINPUT 2**28` takes 4 GiB.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._left = _MAX_BYTES
        self._keys_left = _MAX_VALUES
        self._alike: Counter[int] = Counter()

    def find_class(self, module: str, name: str) -> Any:
        """Return a harmless constructor. Raises `UnsafePickleError`."""
        if (module, name) not in _CLASSES:
            raise UnsafePickleError(f"holds {_shown(f'{module}.{name}')}")
        kind = super().find_class(module, name)

        def make(*arguments: Any) -> Any:
            for argument in arguments:
                self._take(_size(argument))
                if kind in (set, frozenset):
                    self._check_keys(argument)
            return kind(*arguments)

        return make

    def persistent_load(self, pid: Any) -> Any:
        """Refuse references to objects outside."""
        raise UnsafePickleError("refers to an object outside of it")

    def _on_setitem(self) -> None:
        """Check the key of one entry, which is below its value on the stack."""
        self._check_keys(self.stack[-2:-1])  # type: ignore[attr-defined]
        pickle._Unpickler.load_setitem(self)  # type: ignore[attr-defined]

    def _on_setitems(self) -> None:
        """Check the keys of entries, which alternate with their values on the stack."""
        self._check_keys(self.stack[::2])  # type: ignore[attr-defined]
        pickle._Unpickler.load_setitems(self)  # type: ignore[attr-defined]

    def _on_dict(self) -> None:
        """Check the keys of a new dict."""
        self._check_keys(self.stack[::2])  # type: ignore[attr-defined]
        pickle._Unpickler.load_dict(self)  # type: ignore[attr-defined]

    def _on_items(self) -> None:
        """Check items of a set."""
        self._check_keys(self.stack)  # type: ignore[attr-defined]
        pickle._Unpickler.load_additems(self)  # type: ignore[attr-defined]

    def _on_frozen(self) -> None:
        """Check the items of a frozenset."""
        self._check_keys(self.stack)  # type: ignore[attr-defined]
        pickle._Unpickler.load_frozenset(self)  # type: ignore[attr-defined]

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.SETITEM[0]: _on_setitem,
        pickle.SETITEMS[0]: _on_setitems,
        pickle.DICT[0]: _on_dict,
        pickle.ADDITEMS[0]: _on_items,
        pickle.FROZENSET[0]: _on_frozen,
    }

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise UnsafePickleError(f"copies more than {_MAX_BYTES:,} bytes")

    def _check_keys(self, keys: Iterable[Any]) -> None:
        for key in keys:
            self._keys_left -= 1
            if self._keys_left < 0:
                raise UnsafePickleError(f"copies more than {_MAX_VALUES:,} values")
            parts = key if isinstance(key, tuple) else (key,)
            if not all(isinstance(part, _KEYS) for part in parts):
                raise UnsafePickleError(
                    f"has a key that is not a plain value ({type(key).__name__})"
                )
            self._take(sum(map(_size, parts)))
            if isinstance(key, str | bytes) or (isinstance(key, int) and abs(key) < _OWN_HASH):
                continue
            self._alike[hash(key)] += 1
            if self._alike[hash(key)] > _MAX_ALIKE:
                raise UnsafePickleError(f"has more than {_MAX_ALIKE} keys with one hash")


def _size(value: Any) -> int:
    """Return the length of a text or collection, the bytes of anything else."""
    if isinstance(value, str | bytes | bytearray | list | tuple | set | frozenset | dict):
        return len(value)
    return sys.getsizeof(value)


def _count(value: Any) -> None:
    """Raise `UnsafePickleError` if the value would be too large when written out."""
    left, bytes_left, stack = _MAX_VALUES, _MAX_BYTES, [value]
    while stack:
        part = stack.pop()
        left -= 1
        if isinstance(part, dict):
            stack += [*part, *part.values()]
        elif isinstance(part, (list, tuple, set, frozenset)):
            stack += part
        else:
            bytes_left -= _size(part)
        if len(stack) > left:
            raise UnsafePickleError(f"expands to more than {_MAX_VALUES:,} values")
        if bytes_left < 0:
            raise UnsafePickleError(f"expands to more than {_MAX_BYTES:,} bytes")
