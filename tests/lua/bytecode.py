"""What a compiled script takes of Lua's limits, read from the byte code of Lua 5.1, the version that servers have."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from lupa import lua51

__all__ = ["Function", "functions_of"]

_HEADER = (
    b"\x1bLua\x51\x00\x01\x04\x08\x04\x08\x00"  # little-endian; int 4, size_t 8, number 8 bytes
)
_COMPILE = b"return string.dump(assert(loadstring(...)))"


class Function(NamedTuple):
    """A function of a script, the first being all of it: its line, names in use at a time, and names from outside."""

    line: int
    locals: int
    upvalues: int
    registers: int


def functions_of(source: bytes) -> list[Function]:
    """Compile a script; returns all its functions."""
    lua = lua51.LuaRuntime(encoding=None)
    dumped: bytes = lua.execute(_COMPILE, source)
    assert dumped.startswith(_HEADER)
    return list(_Reader(dumped, len(_HEADER)).functions())


class _Reader:
    """Reads a dump from a position on."""

    def __init__(self, dumped: bytes, at: int) -> None:
        self._dumped, self._at = dumped, at

    def functions(self) -> Iterator[Function]:
        """Read a function, and those that it makes."""
        self._string()
        line, _, upvalues, _, _, registers = self._take("<iiBBBB")
        self._skip(4 * self._int())  # instructions
        for _ in range(self._int()):
            self._constant()
        inner = [each for _ in range(self._int()) for each in self.functions()]
        self._skip(4 * self._int())  # lines
        spans = []
        for _ in range(self._int()):
            self._string()
            spans.append(self._take("<ii"))
        for _ in range(self._int()):
            self._string()
        at_once = max((sum(a <= at < b for a, b in spans) for at, _ in spans), default=0)
        yield Function(line, at_once, upvalues, registers)
        yield from inner

    def _constant(self) -> None:
        (kind,) = self._take("<B")
        if kind == 4:
            self._string()
        else:
            self._skip({0: 0, 1: 1, 3: 8}[kind])

    def _string(self) -> None:
        (size,) = self._take("<Q")
        self._skip(size)

    def _skip(self, size: int) -> None:
        self._at += size

    def _int(self) -> int:
        number: int = self._take("<i")[0]
        return number

    def _take(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from(form, self._dumped, self._at)
        self._at += struct.calcsize(form)
        return values
