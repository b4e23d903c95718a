"""How deep JSON may be nested."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MAX_DEPTH", "SHORT", "TOO_DEEP", "is_too_deep"]

#: The deepest nesting of a body. A call uses two levels: the call itself, and its args or kwargs.
MAX_DEPTH: Final = 64
#: A body of up to this many bytes cannot be too deep: 65 levels take 65 opening and 65 closing brackets.
SHORT: Final = 2 * MAX_DEPTH

TOO_DEEP: Final = f"is nested deeper than {MAX_DEPTH} levels"
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
