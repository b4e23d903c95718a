"""Why messages become dead letters."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

__all__ = ["DEATH_REASONS"]

#: Reason → its meaning. Consumers in other languages may use other reasons: one word of a-z and _.
DEATH_REASONS: Final = MappingProxyType(
    {
        "max_receives": "it failed as often as its max receives allows",
        "not_retried": "its handler failed with an error that its retry policy does not retry",
        "rejected": "its handler or receiver buried it",
        "unknown_task": "no worker has the task that it names",
        "bad_arguments": "its arguments do not fit the task",
        "bad_result": "its handler returned what cannot be kept as its result",
        "bad_signature": "it has no valid signature for its queue, id and body",
        "undecipherable": "its body is encrypted, and was changed or belongs to another message",
        "unknown_key": "no worker has the key that it was signed or encrypted with",
        "foreign": "it was not written by qworker, and no consumer can take it",
        "duplicate": "another message had its id; `qworker fsck` gave it a new one",
    }
)
