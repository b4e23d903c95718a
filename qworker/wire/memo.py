r"""What a run has recorded of a step: `[ k=v …]\n<value>`, the value as JSON.

Flag t is when it was recorded, in ms, added by the script, as is d, of the position of a loop: the number of items that
are done. Flag l is how long the function of a step took, in ms, without it less than one; flags e and s are as of an
envelope.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from qworker.wire.envelope import flag_text
from qworker.wire.keyring import Keyring
from qworker.wire.numbers import whole

__all__ = ["MAX_MEMO", "memo_items", "memo_lasted_ms", "memo_ms", "read_memo", "write_memo"]

#: The largest value, in bytes of JSON.
MAX_MEMO: Final = 2**20


def write_memo(
    value: bytes,
    keyring: Keyring,
    namespace: str,
    queue: str,
    message_id: str,
    step: str,
    *,
    lasted_ms: int = 0,
) -> bytes:
    """Write the value of a step, signed and encrypted as messages are if the keyring has keys."""
    flags: dict[str, str] = {"l": str(lasted_ms)} if lasted_ms else {}
    if not keyring:
        return flag_text(flags).encode() + b"\n" + value
    stored = keyring.protect(namespace, queue, _name(message_id, step), value, flags)
    return flag_text(flags).encode() + b"\n" + stored


def read_memo(
    stored: bytes, keyring: Keyring, namespace: str, queue: str, message_id: str, step: str
) -> bytes:
    """Read what `write_memo` has written. Raises `ProtectionError`."""
    line, _, value = stored.partition(b"\n")
    if not keyring and b" e=" not in line:
        return value
    header = f"q1 {_name(message_id, step)} 0 0 0 0 0{line.decode('utf-8', 'replace')}\n".encode()
    return keyring.open(namespace, queue, header + value)[len(header) :]


def memo_ms(stored: bytes) -> int | None:
    """Read when a step was recorded, in ms since 1970 by the server's clock; None if that is not known."""
    if not stored.startswith(b" t="):
        return None
    return whole(stored[3 : stored.find(b"\n")].partition(b" ")[0])


def memo_items(stored: bytes) -> int | None:
    """Read how many items of a loop are done; None of anything but the position of a loop."""
    return _number(stored, b"d=")


def memo_lasted_ms(stored: bytes) -> int:
    """Read how long the function of a step took, in ms; 0 if that is not known, or less."""
    return _number(stored, b"l=") or 0


def _number(stored: bytes, flag: bytes) -> int | None:
    line, _, _ = stored.partition(b"\n")
    for word in line.split(b" "):
        if word.startswith(flag):
            return whole(word[2:])
    return None


def _name(message_id: str, step: str) -> str:
    # The value of a step must not pass for that of another one, nor of another run.
    return "memo." + blake2b(f"{message_id} {step}".encode(), digest_size=24).hexdigest()
