"""Defects to plant: a suite that does not catch them proves nothing.

A script is changed in the process that sends it, by replacing text that must be there; see `plant`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from qworker.engine import scripts

__all__ = ["MUTATIONS", "Mutation", "plant"]


@dataclass(frozen=True)
class Mutation:
    """A defect: its description, the rows that should see it first, and how it is planted.

    `texts`: (script, what stands there, what is put there instead).
    """

    defect: str
    rows: Sequence[str]
    texts: Sequence[tuple[str, str, str]] = ()
    patch: Callable[[], None] | None = None


def _send_again_without_number() -> None:
    """A send whose reply was lost is repeated as if it were a new one."""
    from qworker.engine.command import Command

    repeated = Command.repeated

    def repeated_as_new(self: Any) -> Any:
        again = repeated(self)
        if self.script is None or self.script.name != "send":
            return again
        from msgspec import structs

        return structs.replace(again, args=(again.args[0], "", 0, *again.args[3:]))

    Command.repeated = repeated_as_new  # type: ignore[method-assign]


_SETTLERS = ("settle", "settle_receive")

MUTATIONS: dict[str, Mutation] = {
    "ack-without-receipt-check": Mutation(
        "an ack counts whether or not the lease still holds the message",
        ("F9", "F27", "F40b"),
        tuple(
            (script, before, after)
            for script in _SETTLERS
            for before, after in (
                (
                    "local held = redis.call('HDEL', lease.key, index)",
                    "redis.call('HDEL', lease.key, index) local held = 1",
                ),
                (
                    "acked = acked + take_out_of(lease.key, lease.acks)",
                    "take_out_of(lease.key, lease.acks) acked = acked + #lease.acks",
                ),
            )
        ),
    ),
    "key-free-at-a-retry": Mutation(
        "a message that is nacked frees its unique key",
        ("U1",),
        tuple(
            (
                script,
                "    local back = assemble(message)\n    if crashed then",
                "    local back = assemble(message)\n    free_unique_of(back)\n    if crashed then",
            )
            for script in _SETTLERS
        ),
    ),
    "debounce-keeps-both": Mutation(
        "a message that another one replaces stays",
        ("U1",),
        (("send", "      redis.call('ZREM', delayed, hold.item)\n", ""),),
    ),
    "throttle-for-ever": Mutation(
        "a key that is held for a time is never free again",
        ("U1",),
        (("send", "hold.until_ms = math.min(now + ms, MAX_MS)", "hold.until_ms = MAX_MS"),),
    ),
    "overlap-skips-for-ever": Mutation(
        "the message of a slot holds its key under another name, and no end frees it",
        ("U1",),
        (("fire", "string.match(ARGV[7], '^q1 (%S+)') .. ' '", "'x '"),),
    ),
    "pop-before-lease": Mutation(
        "receive takes messages off the list before it writes the lease",
        ("F51", "F33", "F1"),
        (
            (
                "settle_receive",
                "if #batch.items > 0 then\n    write_items(",
                "for number, seen in pairs(cut) do if seen > 0 then redis.call('LTRIM', ready(number), seen, -1) "
                "cut[number] = 0 end end\n  if #batch.items > 0 then\n    write_items(",
            ),
        ),
    ),
    "reap-forgets-suspects": Mutation(
        "a reap drops what is to be delivered alone",
        ("F16",),
        (
            (
                "reap",
                "for first = 1, #to.suspects, CHUNK do",
                "for first = 1, 0, CHUNK do",
            ),
        ),
    ),
    "send-without-number": Mutation(
        "a send whose reply was lost is repeated without its lane and number",
        ("F7", "F26r"),
        patch=_send_again_without_number,
    ),
    "settle-ignores-parts": Mutation(
        "outcomes of a part of a lease are counted as done, and not applied",
        ("F1", "F0"),
        tuple(
            (
                script,
                "acked = acked + take_out_of(lease.key, lease.acks)",
                "acked = acked + #lease.acks",
            )
            for script in _SETTLERS
        ),
    ),
    "settle-takes-part-for-whole": Mutation(
        "outcomes of a part of a lease are applied to all of it",
        ("F1", "F15"),
        tuple(
            (script, "    if lease.all then\n", "    if lease.all or #lease.acks > 0 then\n")
            for script in _SETTLERS
        ),
    ),
}


def plant(name: str) -> None:
    """Plant a mutation in this process; '' plants none. Raises where a text is not there, or an unknown name."""
    if not name:
        return
    mutation = MUTATIONS[name]
    if mutation.patch is not None:
        mutation.patch()
    load = scripts.load_script

    @functools.cache
    def load_mutated(script: str) -> scripts.Script:
        loaded = load(script)
        return scripts.Script(script, mutated(mutation, script, loaded.source))

    scripts.load_script = load_mutated


def mutated(mutation: Mutation, script: str, source: bytes) -> bytes:
    """Put a mutation's texts into a script. Raises where one is not there exactly once or more."""
    for name, before, after in mutation.texts:
        if name == script:
            if before.encode() not in source:
                raise LookupError(f"{script}.lua holds no {before!r}")
            source = source.replace(before.encode(), after.encode())
    return source
