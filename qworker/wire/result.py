r"""The result of a message, as stored under its id: `<state>[ words]\n<rest>`.

ok[ k=v …]\n<value>                  acked; the value as JSON. Flags e and s as of an envelope, of a protected value
dead <reason> <error class>\n<text>  a dead letter
cancelled\n  discarded\n  expired\n  purged\n     the other ends without a value; the newline may be missing
Of a chain, the first line ends with the step that ended so: ` <queue> <task> <message id>`.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec

from qworker.wire.envelope import flag_text
from qworker.wire.keyring import Keyring

__all__ = ["ENDS", "MAX_KEEP_MS", "MAX_RESULT", "Outcome", "read_end", "read_result", "write_value"]

#: The largest value, in bytes of JSON, and how long one is kept at most.
MAX_RESULT: Final = 2**20
MAX_KEEP_MS: Final = 30 * 24 * 3_600_000
#: Ends without a value other than death.
ENDS: Final = ("cancelled", "discarded", "expired", "purged")


class Outcome(msgspec.Struct, frozen=True):
    """The result of a message: `state` is ok, dead or one of `ENDS`; another version of ours may write others.

    `value` is JSON, of ok; `reason`, `error` (its class) and `text` are those of a dead letter.
    """

    state: str
    value: bytes = b""
    reason: str = ""
    error: str = ""
    text: str = ""
    #: Of a chain that ended without a value: queue, task and message id of the step that did.
    step: tuple[str, str, str] | None = None


def write_value(
    value: bytes, keyring: Keyring, namespace: str, queue: str, message_id: str
) -> bytes:
    """Write the value of a message, signed and encrypted as messages are if the keyring has keys."""
    if not keyring:
        return b"ok\n" + value
    flags: dict[str, str] = {}
    stored = keyring.protect(namespace, queue, _name(message_id), value, flags)
    return b"ok" + flag_text(flags).encode() + b"\n" + stored


def read_result(
    stored: bytes, keyring: Keyring, namespace: str, queue: str, message_id: str
) -> Outcome:
    """Read what `write_value` or a script has written. Raises `ProtectionError`."""
    line, _, rest = stored.partition(b"\n")
    state, _, words = line.decode("utf-8", "replace").partition(" ")
    if state == "ok":
        flags = f" {words}" if words else ""
        header = f"q1 {_name(message_id)} 0 0 0 0 0{flags}\n".encode()
        return Outcome(state, keyring.open(namespace, queue, header + rest)[len(header) :])
    return read_end(stored)


def read_end(stored: bytes) -> Outcome:
    """Read an end without a value."""
    line, _, rest = stored.partition(b"\n")
    state, _, words = line.decode("utf-8", "replace").partition(" ")
    parts = words.split(" ")
    step = (
        (parts[-3], parts[-2], parts[-1]) if len(parts) >= (5 if state == "dead" else 3) else None
    )
    reason, error = (*parts, "", "")[:2] if state == "dead" else ("", "")
    text = rest.decode("utf-8", "replace")
    return Outcome(state, reason=reason, error=error, text=text, step=step)


def _name(message_id: str) -> str:
    # Not the id alone: the body of a message must not pass for its result.
    name = f"result.{message_id}"
    if len(name) <= 64:
        return name
    return "result." + blake2b(message_id.encode(), digest_size=24).hexdigest()
