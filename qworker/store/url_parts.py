"""The parts of a server URL: credentials, socket, database and options. Errors name a part and never quote it."""

from __future__ import annotations

import difflib
import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from qworker.errors import InvalidOptionError
from qworker.store.nodes import decode
from qworker.store.redacted import redacted
from qworker.store.tls import TLS_OPTIONS

__all__ = [
    "SENTINEL_OPTIONS",
    "check_path",
    "credentials_of",
    "database",
    "options_of",
    "socket_path",
    "split_url",
    "tcp_db",
]

SENTINEL_OPTIONS: Final = ("sentinel_username", "sentinel_password")
_OPTIONS: Final = ("db", *TLS_OPTIONS, *SENTINEL_OPTIONS)
_CREDENTIALS: Final = re.compile(r":.*@")


def credentials_of(parts: SplitResult, field: str) -> tuple[str | None, str | None]:
    """Return user and password. Raises `InvalidOptionError`."""
    user, password = parts.username or None, parts.password
    if user and password is None:
        # A lone name may be a misplaced password, and users are shown.
        raise InvalidOptionError(
            field, "has a user without a password", "write user:password@, user:@ or :password@"
        )
    if user is None and not password:
        return None, None
    return user and decode(user, field), decode(password or "", field)


def split_url(text: str) -> SplitResult:
    """Split a URL, also one with several hosts. Raises `ValueError`."""
    rest = text.partition("://")[2]
    nodes = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "," not in nodes:
        return urlsplit(text)
    # From 3.14 on Python checks brackets as those of one host. `parse_nodes` checks each node.
    return urlsplit(text.replace(nodes, "nodes", 1))._replace(netloc=nodes)


def socket_path(parts: SplitResult, field: str) -> str:
    """Return the path of a Unix socket. Raises `InvalidOptionError`."""
    if parts.netloc.rpartition("@")[2]:
        raise InvalidOptionError(
            field, "names a host with unix://", "write unix:///absolute/path, with three slashes"
        )
    path = decode(parts.path, field)
    if path in ("", "/"):
        raise InvalidOptionError(field, "names no socket", "write unix:///absolute/path")
    check_path(path, field, "write unix://user:password@/path, with the third slash after them")
    return path


def check_path(path: str, field: str, limit: str) -> None:
    """Refuse a path that may hold a password. Raises `InvalidOptionError`."""
    # Paths are shown, and this one may hold a password.
    if _CREDENTIALS.search(path):
        raise InvalidOptionError(field, "has user:password@ in its path", limit)


def tcp_db(parts: SplitResult, options: dict[str, str], field: str) -> int:
    """Return the database of a TCP URL, from its path or its option. Raises `InvalidOptionError`."""
    from_path = parts.path.removeprefix("/")
    if from_path and "db" in options:
        raise InvalidOptionError(
            field, "names the database twice", "write /0 after the host, or ?db=0"
        )
    return database(from_path or options.get("db", "0"), field)


def database(text: str, field: str) -> int:
    """Return the number of a database. Raises `InvalidOptionError`."""
    # The server decides how many databases it has; 16 by default.
    if re.fullmatch(r"[0-9]{1,5}", text) is None:
        raise InvalidOptionError(field, "has a wrong database", "write a number from 0, as in /0")
    return int(text)


def options_of(parts: SplitResult, field: str) -> dict[str, str]:
    """Return the options of the query. Raises `InvalidOptionError`."""
    with redacted(field, "has a wrong query", "write ?name=value&name=value"):
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    options: dict[str, str] = {}
    for name, value in pairs:
        if name in ("username", "password"):
            raise InvalidOptionError(
                field, f"has the option {name}", "write user:password@ before the host"
            )
        if name == "ssl_cert_reqs":
            raise InvalidOptionError(
                field,
                "has the option ssl_cert_reqs, which qworker does not support",
                "certificates are verified; insecure=true turns that off",
            )
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(_OPTIONS)}"
            raise InvalidOptionError(field, "has an unknown option", hint)
        if name in options:
            raise InvalidOptionError(field, f"has the option {name} twice", "write it once")
        options[name] = value
    return options
