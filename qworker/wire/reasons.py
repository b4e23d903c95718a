"""Reasons for which a message becomes a dead letter: one place, for what writes them and what lists them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

__all__ = ["DEATH_REASONS"]

#: Reason → what it means. Consumers in other languages may have reasons of their own: one word of a-z and _.
DEATH_REASONS: Final = MappingProxyType(
    {
        "max_receives": "it failed as often as its max receives allows",
        "not_retried": "its handler failed with an error that its retry policy gives up on",
        "rejected": "its handler, or whoever received it, buried it",
        "unknown_task": "no worker knows the task that it names",
        "bad_arguments": "its arguments do not fit the task",
        "bad_signature": "it is not signed by a holder of the keys for this queue, id and body",
        "undecipherable": "its body is encrypted, and was changed or belongs to another message",
        "unknown_key": "no worker holds the key that it was signed or encrypted with",
        "foreign": "it was not written by qworker, no consumer can take it",
        "duplicate": "another message had its id; `qworker fsck` gave it one of its own",
    }
)
