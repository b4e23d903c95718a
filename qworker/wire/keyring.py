"""The keys of one process, and what it makes of them: senders sign and encrypt, receivers verify and decrypt.

Encrypted first, then signed: a signature is verified before anything is decrypted, and both before a body is decoded.
New messages take the first key of each kind, the others are accepted: that is how keys are changed without a stop.
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
from qworker.wire.envelope import Envelope, Kind, kind_of
from qworker.wire.sealing import CIPHER, KEY_BYTES, check_crypto, seal, unseal
from qworker.wire.signing import Subject, fits, sign

__all__ = ["NO_KEYS", "Keyring", "is_encrypted"]

_KEY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
#: An HMAC key that is shorter than its hash is the weaker for it.
_SIGNING_BYTES: Final = 32
_NO_FLAGS: Final[Mapping[str, str]] = MappingProxyType({})


class Keyring:
    """Keys by their ids. False where it holds none: then nothing is signed, encrypted or refused.

    `signing`: keys of 32 bytes or more; `encryption`: of exactly 32. The first of each is the one of new messages.
    `required` False also takes messages without a signature: for the time in which senders are given their keys.
    Raises `InvalidOptionError`, which never quotes a key.
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

    def __repr__(self) -> str:
        signing, encryption = ",".join(self._signing), ",".join(self._encryption)
        return f"Keyring(signing={signing!r}, encryption={encryption!r}, required={self.required})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a keyring is not pickled: its keys would be written somewhere")

    @property
    def signs(self) -> bool:
        """Whether new messages are signed."""
        return bool(self._signing)

    @property
    def encrypts(self) -> bool:
        """Whether new messages are encrypted."""
        return bool(self._encryption)

    # -- sending -------------------------------------------------------------------------------

    def protect(
        self, namespace: str, queue: str, message_id: str, body: bytes, flags: dict[str, str]
    ) -> bytes:
        """Encrypt and sign the body of a new message; returns it as it is stored, and sets its flags."""
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
        """Make the flag s of the messages of a schedule, whose ids daemons make that hold no key; '' without keys.

        Their bodies are not encrypted: they say nothing but the task, which the schedule tells anyway.
        """
        if not self._signing:
            return ""
        return self._signature(Subject(namespace, queue, schedule=name), "", body)

    def _signature(self, subject: Subject, codec: str, body: bytes) -> str:
        key_id = next(iter(self._signing))
        return f"{key_id}.{sign(self._signing[key_id], subject, codec, body)}"

    # -- receiving -----------------------------------------------------------------------------

    def open(self, namespace: str, queue: str, item: bytes) -> bytes:
        """Verify and decrypt a message as it is stored; returns it with its plain body behind the same header.

        Foreign items and those of newer versions are returned as they are. Raises `BadSignatureError`,
        `UndecipherableError` or `UnknownKeyError`.
        """
        envelope = Envelope.parse(item)
        if envelope is None:
            if self._signing and self.required and kind_of(item) is Kind.PLAIN:
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

    def look(self, namespace: str, queue: str, item: bytes) -> tuple[bytes, str]:
        """Open a message to show it: as `open` does, and '', or as it is stored, and why it may not be used."""
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
                f"is signed with the key {_shown(key_id)}, which is not held here",
            )
        if not fits(mac, key, subject, codec, body):
            raise BadSignatureError(
                subject.queue,
                message_id,
                f"has a signature of the key {_shown(key_id)} that is not one for this queue, id and body",
            )

    def _decrypt(self, subject: Subject, message_id: str, codec: str, body: bytes) -> bytes:
        cipher, _, key_id = codec.partition(".")
        key = self._encryption.get(key_id) if cipher == CIPHER else None
        if key is None:
            raise UnknownKeyError(
                subject.queue,
                message_id,
                f"is encrypted with the key {_shown(key_id)}, which is not held here",
            )
        plain = unseal(key, subject, codec, body)
        if plain is None:
            raise UndecipherableError(
                subject.queue,
                message_id,
                f"is encrypted with the key {_shown(key_id)} and does not open: it was changed, or is not of this "
                "queue and id",
            )
        return plain


def is_encrypted(envelope: Envelope | None) -> bool:
    """Say whether the body of a message is encrypted, or was before it was opened."""
    return envelope is not None and envelope.has_flags and "e" in envelope.flags


def _shown(key_id: str) -> str:
    # Of a header that anybody may have written.
    return ascii(key_id[:40])


def _checked(
    field: str, keys: Mapping[str, bytes], *, at_least: int = 0, exactly: int = 0
) -> dict[str, bytes]:
    for key_id, key in keys.items():
        if not isinstance(key_id, str) or _KEY_ID.fullmatch(key_id) is None:
            raise InvalidOptionError(
                field, "have an id that is none", "an id is 1 to 32 of A-Z, a-z, 0-9, '_' and '-'"
            )
        if not isinstance(key, bytes) or (len(key) != exactly if exactly else len(key) < at_least):
            raise InvalidOptionError(
                field,
                f"have a key {key_id!r} of the wrong length",
                f"{exactly or at_least} random bytes{'' if exactly else ' or more'}: openssl rand -base64 32",
            )
    return dict(keys)


#: What who has no keys has.
NO_KEYS: Final = Keyring()
