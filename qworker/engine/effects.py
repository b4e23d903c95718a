"""Effects of an ack: writes that happen if and only if it counts, see `lua/lib/effects.lua`."""

from __future__ import annotations

from typing import Final, Protocol

from qworker.engine.arguments import given
from qworker.engine.command import Word
from qworker.engine.send import NewMessage
from qworker.wire.envelope import head

__all__ = [
    "END_EFFECT",
    "LIGHT",
    "RELAYED",
    "Effect",
    "PushOptions",
    "member_effect",
    "open_effect",
    "out_effect",
    "push_effect",
    "result_effect",
    "size_of",
]

#: The name of the effect and its words.
Effect = tuple[Word, ...]

_OUT: Final = "out"
_MEMBER: Final = "member"
_OPEN: Final = "open"
#: Effects that concern other queues, or are relayed as if they did.
RELAYED: Final = frozenset((_OUT, _MEMBER, _OPEN))
#: Lets the ack of a callback end its group of calls, whose values go.
END_EFFECT: Final = ("end",)
#: Effects up to this many bytes are applied on a full server as well: about what the message itself frees.
LIGHT: Final = 512


def result_effect(value: bytes, keep_ms: int) -> Effect:
    """Keep `value`, as `wire/result.py` writes it, under the id of the message for `keep_ms`."""
    return ("result", keep_ms, value)


class PushOptions(Protocol):
    """How a new message is sent: times in ms, None for the queue's."""

    @property
    def priority(self) -> int:
        """9 is received first."""

    @property
    def delay_ms(self) -> int | None:
        """How long it waits."""

    @property
    def ttl_ms(self) -> int | None:
        """How long it lives."""


def push_effect(message: NewMessage, options: PushOptions) -> Effect:
    """Store a new message in the same queue (or shard), even if that is full or paused."""
    return ("push", *_words(message, options))


def out_effect(queue: str, message: NewMessage, options: PushOptions) -> Effect:
    """Store a new message in another queue: relayed there, see `qworker.client.relay`."""
    return (_OUT, queue, *_words(message, options))


def member_effect(queue: str, group_id: str, member: int, words: bytes) -> Effect:
    """Count the end of a member of a group of calls, in the queue (or shard) of what follows."""
    return (_MEMBER, queue, group_id, member, words)


def open_effect(queue: str, group_id: str, spec: bytes) -> Effect:
    """Begin a group of calls whose callback is in `queue`, see `qworker.engine.calls`."""
    return (_OPEN, queue, group_id, spec)


def _words(message: NewMessage, options: PushOptions) -> tuple[Word, ...]:
    ttl_ms, delay_ms = given(options.ttl_ms), given(options.delay_ms)
    return (options.priority, delay_ms, ttl_ms, head(message.id), message.tail)


def size_of(effect: Effect) -> int:
    """The bytes that an effect stores."""
    return sum(len(word) for word in effect if isinstance(word, bytes))
