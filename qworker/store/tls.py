"""The TLS options of a server URL: three PEM files and two switches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from qworker.errors import InvalidOptionError
from qworker.store.redacted import redacted

__all__ = ["TLS_OPTIONS", "check_tls"]

TLS_OPTIONS: Final = (
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_check_hostname",
    "insecure",
)
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


def check_tls(scheme: str, options: dict[str, str], field: str) -> dict[str, str | bool | None]:
    """Check the TLS options of a URL; returns fields of `ServerURL`.

    Raises `InvalidOptionError` for an option without rediss://, and for a file that is missing, unreadable or not PEM.
    """
    given = [name for name in TLS_OPTIONS if name in options]
    if not scheme.startswith("rediss"):
        if given:
            raise InvalidOptionError(
                field, f"has the option {given[0]} without TLS", "use it with rediss://"
            )
        return {}
    files: dict[str, str] = {
        name: _file(options[name], name, field)
        for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
        if name in options
    }
    if "ssl_keyfile" in files and "ssl_certfile" not in files:
        raise InvalidOptionError(field, "has ssl_keyfile without ssl_certfile", "give both")
    _check_pem(files, field)
    return {
        **files,
        "ssl_check_hostname": _boolean(options, "ssl_check_hostname", True, field),
        "insecure": _boolean(options, "insecure", False, field),
    }


def _file(text: str, name: str, field: str) -> str:
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise InvalidOptionError(field, f"{name}: no file {str(path)!r}", "give a PEM file")
    if not os.access(path, os.R_OK):
        raise InvalidOptionError(
            field, f"{name}: {str(path)!r} is not readable", "give this user read permission"
        )
    return str(path)


def _check_pem(files: dict[str, str], field: str) -> None:
    # Imported here, as it takes long: children start before their supervisor imports it.
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if "ssl_ca_certs" in files:
        with redacted(field, "ssl_ca_certs holds no certificate", "give a PEM file of CAs"):
            context.load_verify_locations(files["ssl_ca_certs"])
    if "ssl_certfile" in files:
        with redacted(
            field,
            "ssl_certfile and ssl_keyfile hold no certificate with its key",
            "give PEM files, the key without a passphrase",
        ):
            # An empty passphrase, so that OpenSSL does not ask for one on the terminal.
            context.load_cert_chain(
                files["ssl_certfile"], files.get("ssl_keyfile"), password=lambda: b""
            )


def _boolean(options: dict[str, str], name: str, default: bool, field: str) -> bool:
    if name not in options:
        return default
    value = _BOOLEANS.get(options[name].lower())
    if value is None:
        raise InvalidOptionError(field, f"{name} is neither true nor false", "write true or false")
    return value
