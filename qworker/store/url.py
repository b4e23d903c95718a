"""Server URLs: one frozen value per URL, checked before anything connects.

redis://[user:password@]host[:port][/db]      TCP, not encrypted
rediss://…?ssl_ca_certs=/ca.pem               TLS; certificate and host name are verified
redis+sentinel://host:port,host:port/service  the master of a service; ?db=… sentinel_username=… sentinel_password=…
redis+cluster://host:port,host:port           a Cluster, by some of its nodes
unix://[user:password@]/path/to/socket?db=0   Unix socket
embedded:   embedded:/directory               the embedded store, see `qworker.store.embedded.store`

`rediss+sentinel://` and `rediss+cluster://` use TLS for every server.

A wrong URL can have its password anywhere (`redis://:secret`, `redis://u:se/cret@h`), so the errors of this module name
the wrong part and never quote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, quote

from qworker.errors import InvalidOptionError
from qworker.store.nodes import Address, decode, parse_nodes, parse_port
from qworker.store.redacted import redacted
from qworker.store.tls import check_tls
from qworker.store.url_parts import (
    SENTINEL_OPTIONS,
    check_path,
    credentials_of,
    database,
    options_of,
    socket_path,
    split_url,
    tcp_db,
)

__all__ = ["SCHEMES", "ServerURL"]

#: The schemes, for errors.
SCHEMES: Final = (
    "write redis://, rediss://, redis+sentinel://, redis+cluster://, unix:// or embedded:"
)
_DEFAULT_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_KNOWN: Final = (
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "unix",
    "embedded",
)
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_BAD_CHARACTER: Final = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ServerURL:
    """A parsed server URL. `str` and `repr` show the password as `***`."""

    scheme: str
    """A scheme as above, without the colon."""
    host: str = ""
    """Host name or address; empty unless the scheme is "redis" or "rediss"."""
    port: int = _DEFAULT_PORT
    nodes: tuple[Address, ...] = ()
    """The Sentinels, or some nodes of a Cluster."""
    service: str = ""
    """The Sentinels' name for the master."""
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    """For the Sentinels; `username` and `password` are for the servers they watch."""
    path: str | None = None
    """The socket of "unix"; the directory of "embedded", None for the default one."""
    db: int = 0
    username: str | None = None
    password: str | None = None
    ssl_ca_certs: str | None = None
    """PEM file of accepted CAs; None: the system's."""
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_check_hostname: bool = True
    insecure: bool = False
    """True: do not verify the server's certificate at all."""

    @classmethod
    def parse(cls, text: object, field: str = "url") -> ServerURL:
        """Parse and check a URL; its TLS files must exist and be readable. Does not connect.

        Raises `InvalidOptionError`, which never quotes the URL.
        """
        if isinstance(text, cls):
            return text
        if not isinstance(text, str):
            raise InvalidOptionError(field, f"is {type(text).__name__}, not str", SCHEMES)
        return _parse(text, field)

    @property
    def address(self) -> str:
        """The server's address for display: "host:port", several of them, a socket path, or "embedded:…"."""
        if self.scheme == "embedded":
            return f"embedded:{self.path or ''}"
        if self.scheme == "unix":
            return self.path or ""
        return ",".join(map(str, self.nodes or (Address(self.host, self.port),)))

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.scheme.startswith("rediss")

    @property
    def clustered(self) -> bool:
        """Whether it names a Cluster."""
        return self.scheme.endswith("+cluster")

    @property
    def has_sentinels(self) -> bool:
        """Whether it names Sentinels."""
        return self.scheme.endswith("+sentinel")

    def revealed(self) -> str:
        """Write the URL with its passwords, for another process to parse; never for display."""
        return self._written(lambda password: quote(password, safe=""))

    def __str__(self) -> str:
        return self._written(lambda _: "***")

    def _written(self, shown: Callable[[str], str]) -> str:
        """Write the URL; `shown` writes passwords."""
        if self.scheme == "embedded":
            return f"embedded:{quote(self.path or '')}"
        user = quote(self.username or "", safe="")
        secret = "" if self.password is None else f":{shown(self.password)}"
        db = f"db={self.db}" if self.db else ""
        match self.scheme.rpartition("+")[2]:
            case "unix":
                target = quote(self.path or "")
            case "sentinel":
                target = f"{self.address}/{quote(self.service, safe='')}"
            case "cluster":
                target = self.address
            case _:
                target, db = f"{self.address}/{self.db}", ""
        options = [db] if db else []
        if self.sentinel_username is not None:
            options.append(f"sentinel_username={quote(self.sentinel_username, safe='')}")
        if self.sentinel_password is not None:
            options.append(f"sentinel_password={shown(self.sentinel_password)}")
        options += [
            f"{name}={quote(value)}"
            for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
            if (value := getattr(self, name)) is not None
        ]
        options += ["ssl_check_hostname=false"] if not self.ssl_check_hostname else []
        options += ["insecure=true"] if self.insecure else []
        query = "?" + "&".join(options) if options else ""
        return f"{self.scheme}://{user}{secret}{'@' if user or secret else ''}{target}{query}"

    def __repr__(self) -> str:
        return f"ServerURL({str(self)!r})"


def _parse(text: str, field: str) -> ServerURL:
    if not text:
        raise InvalidOptionError(field, "is empty", SCHEMES)
    if _BAD_CHARACTER.search(text):
        raise InvalidOptionError(
            field, "has a space or control character", "percent-encode it (a space is %20)"
        )
    if _SURROGATE.search(text):
        # From bytes in the environment that are not UTF-8.
        raise InvalidOptionError(
            field,
            "has bytes that are not UTF-8",
            "percent-encode the bytes of UTF-8 (an é is %C3%A9)",
        )
    if _BAD_ESCAPE.search(text):
        raise InvalidOptionError(
            field, "has a '%' that does not start an escape", "write a plain '%' as %25"
        )
    scheme = text.partition(":")[0]
    if scheme not in _KNOWN or ":" not in text:
        # Without "://" the part before the colon may be a user or a password.
        other = re.fullmatch(r"([a-z][a-z0-9+.-]{0,20})://.*", text)
        problem = f"{other[1]}:// is not a known scheme" if other else "has no scheme"
        raise InvalidOptionError(field, problem, SCHEMES)
    if scheme == "embedded":
        return _embedded(text, field)
    if not text.startswith(f"{scheme}://"):
        raise InvalidOptionError(field, f"has no '//' after {scheme}:", SCHEMES)
    with redacted(field, "cannot be parsed", "check the brackets of an IPv6 address"):
        parts = split_url(text)
    if "#" in text:
        raise InvalidOptionError(field, "has a '#'", "write a plain '#' as %23")
    options = options_of(parts, field)
    user, password = credentials_of(parts, field)
    fields: dict[str, Any] = {
        "scheme": scheme,
        "username": user,
        "password": password,
        **check_tls(parts.scheme, options, field),
    }
    for name in SENTINEL_OPTIONS:
        if name in options and not scheme.endswith("+sentinel"):
            raise InvalidOptionError(
                field, f"has the option {name} without Sentinels", "use it with redis+sentinel://"
            )
    match scheme.rpartition("+")[2]:
        case "unix":
            path = socket_path(parts, field)
            return ServerURL(path=path, db=database(options.get("db", "0"), field), **fields)
        case "sentinel":
            return ServerURL(**_sentinels(parts, options, field), **fields)
        case "cluster":
            return ServerURL(nodes=_cluster(parts, options, field), **fields)
    return ServerURL(
        host=decode(parts.hostname or "localhost", field),
        port=parse_port(parts, _DEFAULT_PORT, field),
        db=tcp_db(parts, options, field),
        **fields,
    )


def _sentinels(parts: SplitResult, options: dict[str, str], field: str) -> dict[str, Any]:
    service = decode(parts.path.removeprefix("/"), field)
    if not service or "/" in service:
        problem = "names more than the service" if service else "names no service"
        raise InvalidOptionError(
            field,
            problem,
            "write the Sentinels' name of the master after the hosts, /mymaster, and a database as ?db=1",
        )
    return {
        "nodes": parse_nodes(parts.netloc, _SENTINEL_PORT, field),
        "service": service,
        "db": database(options.get("db", "0"), field),
        **{name: options[name] for name in SENTINEL_OPTIONS if name in options},
    }


def _cluster(parts: SplitResult, options: dict[str, str], field: str) -> tuple[Address, ...]:
    if tcp_db(parts, options, field):
        raise InvalidOptionError(field, "names a database", "a Cluster has only database 0")
    return parse_nodes(parts.netloc, _DEFAULT_PORT, field)


def _embedded(text: str, field: str) -> ServerURL:
    rest = decode(text.removeprefix("embedded:"), field)
    if rest.startswith("//"):
        raise InvalidOptionError(
            field,
            "embedded: names a directory, not a host",
            "write embedded: or embedded:/directory",
        )
    check_path(rest, field, "the embedded store has no users; write embedded:/directory")
    return ServerURL(scheme="embedded", path=rest or None)
