"""Kinds of values that only sends have: moments, keys and names of groups."""

from __future__ import annotations

from datetime import datetime

from qworker.config.kinds import Kind
from qworker.wire.groups import is_group

__all__ = ["GroupKind", "KeyKind", "MomentKind"]


class MomentKind(Kind):
    """A point in time, with its time zone."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """How to write one."""
        return (
            "it must be a datetime with a time zone, such as datetime.now(UTC) + timedelta(hours=1)"
        )

    def _checked(self, value: object, field: str) -> datetime:
        if not isinstance(value, datetime):
            raise self._refused(value, field, "is not a datetime")
        if value.utcoffset() is None:
            raise self._refused(value, field, "has no time zone")
        return value


class KeyKind(Kind):
    """Text of 1 to 256 bytes."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """The range."""
        return "it must be text of 1 to 256 bytes in UTF-8"

    def _checked(self, value: object, field: str) -> str:
        if not isinstance(value, str):
            raise self._refused(value, field, "is not a str")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise self._refused(value, field, "holds a lone surrogate") from None
        if not 1 <= size <= 256:
            raise self._refused(value, field, f"is {size} bytes")
        return value


class GroupKind(Kind):
    """The name of a group, or of a group of a parent: `acme`, `acme/ann`."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """How to write one."""
        return "write 1 to 256 bytes without control characters, not * or =, and at most one / inside, such as acme/ann"

    def _checked(self, value: object, field: str) -> str:
        if not isinstance(value, str):
            raise self._refused(value, field, "is not a str")
        if not is_group(value):
            raise self._refused(value, field, "is not the name of a group")
        return value
