"""Reading pickles that others wrote, without running what is in them.

A pickle is a program: `pickle.loads` on foreign bytes runs any code that they name. Here its instructions are looked
at first: only those are let through that build plain values, and the only classes that may be named are sets, `Decimal`
and those of `datetime`, whose constructors do nothing but check their arguments.

A short pickle can also stand for a large or slow value, so all of that is bounded: instructions, the texts and
values that the result has when it is written out (one text may be in it any number of times), what constructors are
given, and keys.
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
#: Values that one pickle may hold, and instructions that it may be: a short one that refers to itself over and over
#: stands for any number of values.
_MOST_VALUES: Final = 1_000_000
#: Bytes of texts and numbers that it may stand for, and that constructors may be given: sixteen times the largest body.
_MOST_BYTES: Final = 64 * 1024 * 1024
#: Keys with one and the same hash. Hashes of texts are salted; those of numbers and tuples can be chosen, and n keys of
#: one hash take n² comparisons.
_MOST_ALIKE: Final = 500
#: What can be a key: values whose hash costs no more than their length. A tuple of tuples can be hashed for ever.
_KEYS: Final = (str, bytes, int, float, type(None), Decimal, date, time, timedelta)
#: Numbers below the modulus of their hash have hashes of their own.
_OWN_HASH: Final = sys.hash_info.modulus


class UnsafePickleError(Exception):
    """A pickle that is more than plain values, or none at all; the text says what was found."""


def read_plain(data: bytes) -> Any:
    """Read a pickle of plain values: None, bool, numbers, text, bytes, list, tuple, set, dict, dates and times.

    Raises `UnsafePickleError` for anything else, before anything of it has run.
    """
    try:
        _look_through(data)
        value = _Reader(data).load()
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
    for number, (opcode, argument, at) in enumerate(pickletools.genops(data)):
        if number >= _MOST_VALUES:
            raise UnsafePickleError(f"has more than {_MOST_VALUES:,} instructions")
        if (
            opcode.name == "FRAME"
            and isinstance(argument, int)
            and argument > len(data) - (at or 0)
        ):
            raise UnsafePickleError("cannot be read (a frame goes on behind its end)")
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


class _Reader(pickle._Unpickler):
    """An Unpickler that knows the classes of `_CLASSES` and no other, and looks at keys before they are hashed.

    That of Python and not that of C, which cannot be told to look, and which makes room for as many memo entries as the
    largest index says: `LONG_BINPUT 2**28` takes 4 GiB.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._left = _MOST_BYTES
        self._keys_left = _MOST_VALUES
        self._alike: Counter[int] = Counter()

    def find_class(self, module: str, name: str) -> Any:
        """Return a constructor that does no harm. Raises `UnsafePickleError`."""
        if (module, name) not in _CLASSES:
            raise UnsafePickleError(f"holds {_shown(f'{module}.{name}')}")
        kind = super().find_class(module, name)

        def make(*arguments: Any) -> Any:
            for each in arguments:
                self._take(_size(each))
            if kind in (set, frozenset):
                for each in arguments:
                    self._look_at(each)
            return kind(*arguments)

        return make

    def persistent_load(self, pid: Any) -> Any:
        """Refuse references to things outside."""
        raise UnsafePickleError("refers to something outside of it")

    def _on_setitem(self) -> None:
        """Check the key of one entry, which lies below its value."""
        self._look_at(self.stack[-2:-1])  # type: ignore[attr-defined]
        pickle._Unpickler.load_setitem(self)  # type: ignore[attr-defined]

    def _on_setitems(self) -> None:
        """Check the keys of entries, which lie in turn with their values."""
        self._look_at(self.stack[::2])  # type: ignore[attr-defined]
        pickle._Unpickler.load_setitems(self)  # type: ignore[attr-defined]

    def _on_dict(self) -> None:
        """Check the keys of a new dict."""
        self._look_at(self.stack[::2])  # type: ignore[attr-defined]
        pickle._Unpickler.load_dict(self)  # type: ignore[attr-defined]

    def _on_items(self) -> None:
        """Check what goes into a set."""
        self._look_at(self.stack)  # type: ignore[attr-defined]
        pickle._Unpickler.load_additems(self)  # type: ignore[attr-defined]

    def _on_frozen(self) -> None:
        """Check what a frozen set is made of."""
        self._look_at(self.stack)  # type: ignore[attr-defined]
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
            raise UnsafePickleError(f"copies more than {_MOST_BYTES:,} bytes")

    def _look_at(self, keys: Iterable[Any]) -> None:
        for key in keys:
            self._keys_left -= 1
            if self._keys_left < 0:
                raise UnsafePickleError(f"copies more than {_MOST_VALUES:,} values")
            parts = key if isinstance(key, tuple) else (key,)
            if not all(isinstance(part, _KEYS) for part in parts):
                raise UnsafePickleError(f"has a key that is no plain value ({type(key).__name__})")
            self._take(sum(map(_size, parts)))
            if isinstance(key, str | bytes) or (isinstance(key, int) and abs(key) < _OWN_HASH):
                continue
            self._alike[hash(key)] += 1
            if self._alike[hash(key)] > _MOST_ALIKE:
                raise UnsafePickleError(f"has more than {_MOST_ALIKE} keys of one hash")


def _size(value: Any) -> int:
    """The length of a text or collection, the bytes of anything else."""
    if isinstance(value, str | bytes | bytearray | list | tuple | set | frozenset | dict):
        return len(value)
    return sys.getsizeof(value)


def _count(value: Any) -> None:
    """Raise `UnsafePickleError` where the value, written out, would be larger than any that is meant."""
    left, bytes_left, waiting = _MOST_VALUES, _MOST_BYTES, [value]
    while waiting:
        each = waiting.pop()
        left -= 1
        if isinstance(each, dict):
            waiting += [*each, *each.values()]
        elif isinstance(each, (list, tuple, set, frozenset)):
            waiting += each
        else:
            bytes_left -= _size(each)
        if len(waiting) > left:
            raise UnsafePickleError(f"stands for more than {_MOST_VALUES:,} values")
        if bytes_left < 0:
            raise UnsafePickleError(f"stands for more than {_MOST_BYTES:,} bytes")
