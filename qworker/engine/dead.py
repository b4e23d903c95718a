"""Commands that change dead letters by their entry ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from qworker.engine.arguments import given, standard_keys
from qworker.engine.command import Command, Word
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.envelope import flag_text
from qworker.wire.ids import EntryId
from qworker.wire.keys import QueueKeys

__all__ = ["drop", "edit", "redrive"]


def redrive(
    keys: QueueKeys, entry_ids: Sequence[EntryId], *, now_ms: int | None = None
) -> Command[tuple[int, ...]]:
    """Put up to 100 dead letters back to ready. Returns per entry: 1 redriven, 0 gone, -1 foreign, -2 kept out: another
    message holds its unique key.

    A call ends after 1 MiB; entries without a result are unchanged.
    """

    def decode(reply: Any) -> tuple[int, ...]:
        return tuple(accepted(reply, keys.queue)[3:])

    return Command(load_script("redrive"), standard_keys(keys), _args(now_ms, entry_ids), decode)


def drop(
    keys: QueueKeys, entry_ids: Sequence[EntryId], *, now_ms: int | None = None
) -> Command[tuple[int, int]]:
    """Delete up to 100 dead letters; returns how many were deleted, and how many entries were checked.

    If the journal is on, a call ends after 1 MiB.
    """

    def decode(reply: Any) -> tuple[int, int]:
        _, _, dropped, _, seen = accepted(reply, keys.queue)
        return dropped, seen

    return Command(load_script("drop"), standard_keys(keys), _args(now_ms, entry_ids), decode)


def edit(
    keys: QueueKeys,
    entry_id: EntryId,
    body: bytes,
    flags: Mapping[str, str] | None = None,
    *,
    now_ms: int | None = None,
) -> Command[EntryId | Literal["foreign"] | None]:
    """Give a dead letter another body; returns its new entry id, None if it is gone, 'foreign' if it is not ours.

    The reply raises `BodyTooLargeError`; then nothing was written.
    """

    def decode(reply: Any) -> EntryId | Literal["foreign"] | None:
        made: bytes = accepted(reply, keys.queue)[2]
        if made == b"foreign":
            return "foreign"
        return EntryId.of_stream(made, keys.shard) if made else None

    return Command(
        load_script("edit"),
        standard_keys(keys),
        (given(now_ms), entry_id.in_stream, body, *(() if flags is None else (flag_text(flags),))),
        decode,
    )


def _args(now_ms: int | None, entry_ids: Sequence[EntryId]) -> tuple[Word, ...]:
    return (given(now_ms), *(entry_id.in_stream for entry_id in entry_ids))
