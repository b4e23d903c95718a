"""One dead letter in full, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qworker.cli.framework.output import Block, Fields, Heading, Hint
from qworker.cli.framework.terminal import Cell
from qworker.cli.message.bodies import message_text
from qworker.formats import moment_after
from qworker.wire.reasons import DEATH_REASONS

if TYPE_CHECKING:
    from qworker.client.message import DeadLetter

__all__ = ["dead_letter_text"]


def dead_letter_text(queue: str, dead_letter: DeadLetter, now_ms: int) -> Iterator[str | Block]:
    """Write a dead letter: why it died, its message, and what to do about it."""
    reason = dead_letter.reason
    meaning = DEATH_REASONS.get(reason, "")
    yield Fields(
        {
            "entry": dead_letter.entry_id,
            "died": moment_after(dead_letter.died_ms, now_ms),
            "reason": Cell(f"{reason}: {meaning}" if meaning else reason, "bad"),
            **({"error class": dead_letter.error_class} if dead_letter.error_class else {}),
        }
    )
    if dead_letter.error:
        yield Heading("ERROR")
        yield from dead_letter.error.split("\n")
    yield Heading("MESSAGE")
    yield from message_text(dead_letter.message, now_ms)
    yield Heading("WHAT TO DO")
    entry = dead_letter.entry_id
    yield Hint("after the fix   ", f"qworker dead redrive {queue} --id {entry}")
    yield Hint("with a change   ", f"qworker dead edit {queue} {entry} --redrive")
    yield Hint("or give it up   ", f"qworker dead drop {queue} --id {entry}")
