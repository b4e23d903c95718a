"""The keys of a process: senders sign and encrypt, receivers verify and decrypt.

Bodies are encrypted, then signed: receivers verify before they decrypt, and decrypt before they decode.
New messages use the first key of each kind; receivers accept all of them, so that you can rotate keys without downtime.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from qworker.errors import (
    BadSignatureError,
    InvalidOptionError,
    ProtectionError,
    UndecipherableError,
    UnknownKeyError,
)
from qworker.wire.envelope import Envelope, ItemKind, kind_of
from qworker.wire.sealing import CIPHER, KEY_BYTES, check_crypto, seal, unseal
from qworker.wire.signing import Subject, sign, verify

__all__ = ["NO_KEYS", "Keyring", "is_encrypted"]

_KEY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
#: HMAC keys shorter than the hash are weaker.
_SIGNING_BYTES: Final = 32
_NO_FLAGS: Final[Mapping[str, str]] = MappingProxyType({})


class Keyring:
    """Keys by id. False if it has none: then nothing is signed, encrypted or refused.

    `signing`: keys of at least 32 bytes; `encryption`: keys of exactly 32. New messages use the first of each.
    `required` False accepts unsigned messages, while you roll out keys to senders. Raises `InvalidOptionError`, which
    never quotes a key.
    """

    __slots__ = ("_encryption", "_signing", "required")

    def __init__(
        self,
        *,
        signing: Mapping[str, bytes] = MappingProxyType({}),
        encryption: Mapping[str, bytes] = MappingProxyType({}),
        required: bool = True,
    ) -> None:
        self._signing = _checked("signing keys", signing, at_least=_SIGNING_BYTES)
        self._encryption = _checked("encryption keys", encryption, exactly=KEY_BYTES)
        self.required = required
        if self._encryption:
            check_crypto()

    def __bool__(self) -> bool:
        return bool(self._signing or self._encryption)

    @property
    def encrypts(self) -> bool:
        """Whether new messages are encrypted."""
        return bool(self._encryption)

    def __repr__(self) -> str:
        signing, encryption = ",".join(self._signing), ",".join(self._encryption)
        return f"Keyring(signing={signing!r}, encryption={encryption!r}, required={self.required})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a keyring cannot be pickled: that would write its keys out")

    # -- sending -------------------------------------------------------------------------------

    def protect(
        self, namespace: str, queue: str, message_id: str, body: bytes, flags: dict[str, str]
    ) -> bytes:
        """Encrypt and sign the body of a new message; returns the body to store, and sets its flags."""
        for flag in "ens":
            flags.pop(flag, None)
        subject = Subject(namespace, queue, message_id)
        if self._encryption:
            key_id = next(iter(self._encryption))
            flags["e"] = f"{CIPHER}.{key_id}"
            body = seal(self._encryption[key_id], subject, flags["e"], body)
        if self._signing:
            flags["s"] = self._signature(subject, flags.get("e", ""), body)
        return body

    def sign_schedule(self, namespace: str, queue: str, name: str, body: bytes) -> str:
        """Make the flag s for the messages of a schedule, whose ids are made by daemons without keys; '' without keys.

        Their bodies are not encrypted: they only name the task, as the schedule does.
        """
        if not self._signing:
            return ""
        return self._signature(Subject(namespace, queue, schedule=name), "", body)

    def _signature(self, subject: Subject, codec: str, body: bytes) -> str:
        key_id = next(iter(self._signing))
        return f"{key_id}.{sign(self._signing[key_id], subject, codec, body)}"

    # -- receiving -----------------------------------------------------------------------------

    def open(self, namespace: str, queue: str, item: bytes) -> bytes:
        """Verify and decrypt a stored message; returns it with the same header and its plain body.

        Returns foreign items and those of newer versions unchanged. Raises `BadSignatureError`, `UndecipherableError`
        or `UnknownKeyError`.
        """
        envelope = Envelope.parse(item)
        if envelope is None:
            if self._signing and self.required and kind_of(item) is ItemKind.PLAIN:
                raise BadSignatureError(queue, "", "is plain JSON and so not signed")
            return item
        flags = envelope.flags if envelope.has_flags else _NO_FLAGS
        codec = flags.get("e", "")
        if not (codec or self._signing):
            return item
        subject = Subject(namespace, queue, envelope.id, flags.get("n", ""))
        if self._signing:
            self._verify(subject, envelope.id, flags.get("s", ""), codec, envelope.body)
        if not codec:
            return item
        return item[: -len(envelope.body)] + self._decrypt(
            subject, envelope.id, codec, envelope.body
        )

    def try_open(self, namespace: str, queue: str, item: bytes) -> tuple[bytes, str]:
        """Open a message to show it; returns it with '', or the stored item with the problem."""
        try:
            return self.open(namespace, queue, item), ""
        except ProtectionError as error:
            return item, error.problem

    def _verify(
        self, subject: Subject, message_id: str, signature: str, codec: str, body: bytes
    ) -> None:
        if not signature:
            if self.required:
                raise BadSignatureError(subject.queue, message_id, "is not signed")
            return
        key_id, _, mac = signature.partition(".")
        key = self._signing.get(key_id)
        if key is None:
            raise UnknownKeyError(
                subject.queue,
                message_id,
                f"is signed with the key {_shown(key_id)}, which this process lacks",
            )
        if not verify(mac, key, subject, codec, body):
            raise BadSignatureError(
                subject.queue,
                message_id,
                f"has a signature of the key {_shown(key_id)} that does not match its queue, id and body",
            )

    def _decrypt(self, subject: Subject, message_id: str, codec: str, body: bytes) -> bytes:
        cipher, _, key_id = codec.partition(".")
        key = self._encryption.get(key_id) if cipher == CIPHER else None
        if key is None:
            raise UnknownKeyError(
                subject.queue,
                message_id,
                f"is encrypted with the key {_shown(key_id)}, which this process lacks",
            )
        plain = unseal(key, subject, codec, body)
        if plain is None:
            raise UndecipherableError(
                subject.queue,
                message_id,
                f"is encrypted with the key {_shown(key_id)} and does not decrypt: it was changed, or is of another "
                "queue or id",
            )
        return plain


def is_encrypted(envelope: Envelope | None) -> bool:
    """Say whether the body of a message is encrypted, or was until it was opened."""
    return envelope is not None and envelope.has_flags and "e" in envelope.flags


def _shown(key_id: str) -> str:
    # From a header that anyone can write.
    return ascii(key_id[:40])


def _checked(
    field: str, keys: Mapping[str, bytes], *, at_least: int = 0, exactly: int = 0
) -> dict[str, bytes]:
    for key_id, key in keys.items():
        if not isinstance(key_id, str) or _KEY_ID.fullmatch(key_id) is None:
            raise InvalidOptionError(
                field, "have an invalid id", "an id is 1 to 32 of A-Z, a-z, 0-9, '_' and '-'"
            )
        if not isinstance(key, bytes) or (len(key) != exactly if exactly else len(key) < at_least):
            raise InvalidOptionError(
                field,
                f"have a key {key_id!r} of the wrong length",
                f"use {exactly or at_least} random bytes{'' if exactly else ' or more'}: openssl rand -base64 32",
            )
    return dict(keys)


#: The keyring without keys.
NO_KEYS: Final = Keyring()
