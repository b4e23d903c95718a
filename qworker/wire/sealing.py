r"""Encrypted bodies: AES-256-GCM of the `cryptography` package (extra `crypto`).

    e=a256gcm.<key id>                   a flag of the header
    body      <nonce, 12 bytes> <ciphertext> <tag, 16 bytes>

The subject (see `signing.Subject`) is associated data: a body that is moved to another message or queue does not
decrypt. Each message has its own key, HMAC-SHA256 of the key and the subject: with a single key, random nonces of
96 bits would be safe for 2^32 messages only, which a busy queue sends in a day.
"""

from __future__ import annotations

import hmac
import os
from functools import cache
from typing import TYPE_CHECKING, Final

from qworker.errors import InvalidOptionError
from qworker.wire.signing import Subject

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["CIPHER", "KEY_BYTES", "OVERHEAD", "check_crypto", "seal", "unseal"]

CIPHER: Final = "a256gcm"
KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
#: How many bytes a sealed body is longer than the plain one.
OVERHEAD: Final = _NONCE_BYTES + 16


def check_crypto() -> None:
    """Raise `InvalidOptionError` if the extra is not installed."""
    try:
        _crypto()
    except ImportError as error:
        raise InvalidOptionError(
            "encryption keys",
            "need the package cryptography, which is not installed",
            "pip install 'qworker-redis[crypto]'",
        ) from error


def seal(key: bytes, subject: Subject, codec: str, body: bytes) -> bytes:
    """Encrypt a body. O(size)."""
    nonce, about = os.urandom(_NONCE_BYTES), subject.text(codec)
    cipher, _ = _crypto()
    return nonce + cipher(_key_of(key, about)).encrypt(nonce, body, about)


def unseal(key: bytes, subject: Subject, codec: str, body: bytes) -> bytes | None:
    """Decrypt a body; None if it was changed, or belongs to another message, queue or key. O(size)."""
    if len(body) < OVERHEAD:
        return None
    about, (cipher, invalid) = subject.text(codec), _crypto()
    try:
        plain: bytes = cipher(_key_of(key, about)).decrypt(
            body[:_NONCE_BYTES], body[_NONCE_BYTES:], about
        )
    except invalid:
        return None
    return plain


def _key_of(key: bytes, about: bytes) -> bytes:
    """Derive the key of one message."""
    return hmac.digest(key, about, "sha256")


@cache
def _crypto() -> tuple[type[AESGCM], type[Exception]]:
    # Imported late: only encryption needs it.
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM, InvalidTag
