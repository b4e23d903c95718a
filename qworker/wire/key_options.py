"""Where the keys of a process come from: a file that only its user can read, or the environment; never a flag.

    QWORKER_KEYS_FILE=/etc/qworker/keys.toml        [signing]
                                                    2026b = "<base64>"       the first one signs
                                                    2026a = "<base64>"       is accepted
                                                    [encryption]
                                                    2026b = "<base64>"
    QWORKER_SIGNING_KEYS=2026b:<base64>,2026a:<base64>
    QWORKER_ENCRYPTION_KEYS=2026b:<base64>
    QWORKER_SIGNATURES=required | accepted

Secrets are never shown: errors name the place without quoting it, and `config show` lists only ids.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

from qworker.config.fields import Options, kinds_of
from qworker.config.files import ConfigFile
from qworker.config.kinds import ChoiceKind, Kind
from qworker.config.loading import load
from qworker.errors import InvalidOptionError
from qworker.wire.keyring import NO_KEYS, Keyring

__all__ = ["KeyOptions", "keyring_of", "keys_of_environment"]

_TABLES: Final = ("signing", "encryption")
_FORM: Final = "it must be ID:BASE64, or several with commas; new messages use the first"
_FILE_FORM: Final = "a key file is TOML with the tables [signing] and [encryption] of ID = BASE64"
_MAX_BYTES: Final = 64 * 1024
_NO_FILE: Final = ConfigFile()
#: Rights that others, and the group except for reading, may not have. (Services often get secrets by their group.)
_TOO_OPEN: Final = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO


class KeysKind(Kind):
    """Keys by id; shown without the secrets."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """The form."""
        return _FORM

    def show(self, value: object) -> str:
        """Write the ids only."""
        return ",".join(f"{key_id}:***" for key_id in value) if isinstance(value, Mapping) else ""

    def parse(self, text: str, field: str) -> Mapping[str, bytes]:
        """Read the text of an environment variable."""
        keys: dict[str, bytes] = {}
        for pair in text.split(","):
            key_id, colon, secret = pair.strip().partition(":")
            if not colon or key_id in keys:
                raise InvalidOptionError(field, "cannot be read", _FORM)
            keys[key_id] = _secret(secret, field)
        return MappingProxyType(keys)

    def _checked(self, value: object, field: str) -> Mapping[str, bytes]:
        if not isinstance(value, Mapping):
            raise InvalidOptionError(
                field,
                "is not allowed in a configuration file",
                "set keys_file there, or use the environment",
            )
        return value


class FileKind(Kind):
    """The path of a file, as text."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """The form."""
        return "it must be the path of a file"

    def _checked(self, value: object, field: str) -> str:
        if not isinstance(value, str) or not value or "\0" in value:
            raise self._refused(value, field)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions(Options):
    """Keys for signing and encrypting messages."""

    keys_file: Annotated[
        str | None, FileKind("file of keys that other users cannot read", none="no file")
    ] = None
    signing_keys: Annotated[
        Mapping[str, bytes] | None,
        KeysKind("keys that sign and verify messages", none="not signed"),
    ] = None
    encryption_keys: Annotated[
        Mapping[str, bytes] | None,
        KeysKind("keys that encrypt and decrypt bodies", none="not encrypted"),
    ] = None
    signatures: Annotated[
        str,
        ChoiceKind(
            "whether signing keys make unsigned messages invalid",
            choices=("required", "accepted"),
        ),
    ] = "required"

    def _check_together(self) -> None:
        if self.keys_file is not None and (self.signing_keys or self.encryption_keys):
            raise InvalidOptionError(
                "keys_file", "is given with keys themselves", "give one of the two"
            )


def keys_of_environment(
    environ: Mapping[str, str] = os.environ, file: ConfigFile = _NO_FILE
) -> Keyring:
    """Make the keyring of the environment, or of a configuration file; empty if neither names keys.

    Raises `InvalidOptionError`, which names the variable or the file and never quotes a key.
    """
    if not any(
        f"QWORKER_{name.upper()}" in environ or name in file.values for name in kinds_of(KeyOptions)
    ):
        return NO_KEYS
    return keyring_of(load(KeyOptions, given={}, environ=environ, file=file).options)


def keyring_of(options: KeyOptions) -> Keyring:
    """Make a keyring; reads the file, if any. Raises `InvalidOptionError`."""
    signing, encryption = options.signing_keys or {}, options.encryption_keys or {}
    if options.keys_file is not None:
        signing, encryption = _read(Path(options.keys_file))
    return Keyring(
        signing=signing, encryption=encryption, required=options.signatures == "required"
    )


def _read(path: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    document = _document(path)
    for table in document:
        if table not in _TABLES:
            raise InvalidOptionError(f"{path}: {ascii(table)[1:41]}", "is unknown", _FILE_FORM)
    signing, encryption = (_table(path, name, document.get(name, {})) for name in _TABLES)
    return signing, encryption


def _table(path: Path, name: str, table: object) -> dict[str, bytes]:
    field = f"{path}: {name}"
    if not isinstance(table, dict) or not all(isinstance(text, str) for text in table.values()):
        raise InvalidOptionError(field, "is not a table of texts", _FILE_FORM)
    return {key_id: _secret(secret, field) for key_id, secret in table.items()}


def _document(path: Path) -> dict[str, Any]:
    field = f"keys_file {str(path)!r}"
    try:
        # Check the open file, not another one that may have taken its name. O_NONBLOCK: opening a pipe would wait.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise InvalidOptionError(field, "is not a regular file", _FILE_FORM)
            if mode & _TOO_OPEN:
                raise InvalidOptionError(
                    field, "can be read or written by others", f"chmod 600 {path}"
                )
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InvalidOptionError(field, f"cannot be read: {error.strerror}", _FILE_FORM) from error
    if len(data) > _MAX_BYTES:
        raise InvalidOptionError(field, "is larger than 64 KiB", _FILE_FORM)
    import tomllib  # here: most processes have no file

    try:
        return tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError):
        # Without the cause, which might quote a key.
        raise InvalidOptionError(field, "is not TOML in UTF-8", _FILE_FORM) from None


def _secret(text: str, field: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidOptionError(
            field, "has a key that is not base64", "make one with: openssl rand -base64 32"
        ) from None
