"""Commands that change dead letters, given by entry id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qworker.client.commands.arguments import given, standard_keys
from qworker.client.commands.command import Command
from qworker.client.commands.replies import accepted
from qworker.store.scripts import load_script
from qworker.wire.envelope import flag_text
from qworker.wire.keys import QueueKeys

__all__ = ["drop", "edit", "redrive"]


def redrive(
    keys: QueueKeys, entry_ids: Sequence[str], *, now_ms: int | None = None
) -> Command[tuple[int, ...]]:
    """Put up to 100 dead letters back to ready: 1 redriven, 0 not there, -1 foreign, per entry id.

    A call ends after 1 MiB: the entries behind those that are answered are still as they were.
    """

    def decode(reply: Any) -> tuple[int, ...]:
        return tuple(accepted(reply, keys.queue)[3:])

    return Command(load_script("redrive"), standard_keys(keys), (given(now_ms), *entry_ids), decode)


def drop(
    keys: QueueKeys, entry_ids: Sequence[str], *, now_ms: int | None = None
) -> Command[tuple[int, int]]:
    """Delete up to 100 dead letters; returns how many there were, and how many entries were looked at.

    Where the journal is on, a call ends after 1 MiB.
    """

    def decode(reply: Any) -> tuple[int, int]:
        _, _, dropped, _, seen = accepted(reply, keys.queue)
        return dropped, seen

    return Command(load_script("drop"), standard_keys(keys), (given(now_ms), *entry_ids), decode)


def edit(
    keys: QueueKeys,
    entry_id: str,
    body: bytes,
    flags: Mapping[str, str] | None = None,
    *,
    now_ms: int | None = None,
) -> Command[str]:
    """Give a dead letter another body; returns its new entry id, '' where it is not there, 'foreign' where it is that.

    The reply raises `BodyTooLargeError`; then nothing was written.
    """

    def decode(reply: Any) -> str:
        made: bytes = accepted(reply, keys.queue)[2]
        return made.decode()

    return Command(
        load_script("edit"),
        standard_keys(keys),
        (given(now_ms), entry_id, body, *(() if flags is None else (flag_text(flags),))),
        decode,
    )
