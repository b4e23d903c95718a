"""Server URLs: one frozen value per URL, checked whole before anything connects.

redis://[user:password@]host[:port][/db]      TCP, not encrypted
rediss://…?ssl_ca_certs=/ca.pem               TLS; certificate and host name are verified
unix://[user:password@]/path/to/socket?db=0   Unix socket
embedded:   embedded:/directory               the embedded store, see `qworker.store.embedded`

A password may stand anywhere in a URL that is wrong (`redis://:secret`, `redis://u:se/cret@h`), so the errors of
this module name the part that is wrong and never quote it.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from qworker.errors import InvalidOptionError
from qworker.store.tls import TLS_OPTIONS, check_tls
from qworker.store.unquoted import unquoted

__all__ = ["ServerURL"]

_DEFAULT_PORT: Final = 6379
_SCHEMES: Final = "write redis://, rediss://, unix:// or embedded:"
_SEVERAL_NODES: Final = ("redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
_OPTIONS: Final = ("db", *TLS_OPTIONS)
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BAD_CHARACTER: Final = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ServerURL:
    """A parsed server URL. `str` and `repr` show the password as `***`."""

    scheme: str
    """"redis", "rediss", "unix" or "embedded"."""
    host: str = ""
    """Host name or address; empty unless scheme is "redis" or "rediss"."""
    port: int = _DEFAULT_PORT
    path: str | None = None
    """The socket of "unix"; the directory of "embedded", None for the default one."""
    db: int = 0
    username: str | None = None
    password: str | None = None
    ssl_ca_certs: str | None = None
    """PEM file of the accepted CAs; None: those of the system."""
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_check_hostname: bool = True
    insecure: bool = False
    """True: the server's certificate is not verified at all."""

    @classmethod
    def parse(cls, text: object, field: str = "url") -> ServerURL:
        """Parse and check a URL; TLS files must exist and be readable, nothing is connected.

        Raises `InvalidOptionError` for anything else; its text never quotes the URL.
        """
        if isinstance(text, cls):
            return text
        if not isinstance(text, str):
            raise InvalidOptionError(field, f"is {type(text).__name__}, not str", _SCHEMES)
        return _parse(text, field)

    @property
    def address(self) -> str:
        """Where the server is, for texts: "host:port", a socket path, or "embedded:…"."""
        if self.scheme == "embedded":
            return f"embedded:{self.path or ''}"
        if self.scheme == "unix":
            return self.path or ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        if self.scheme == "embedded":
            return f"embedded:{quote(self.path or '')}"
        user = quote(self.username or "", safe="")
        secret = ":***" if self.password is not None else ""
        place = quote(self.path or "") if self.scheme == "unix" else f"{self.address}/{self.db}"
        options = [f"db={self.db}"] if self.scheme == "unix" and self.db else []
        options += [
            f"{name}={quote(value)}"
            for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
            if (value := getattr(self, name)) is not None
        ]
        options += ["ssl_check_hostname=false"] if not self.ssl_check_hostname else []
        options += ["insecure=true"] if self.insecure else []
        query = "?" + "&".join(options) if options else ""
        return f"{self.scheme}://{user}{secret}{'@' if user or secret else ''}{place}{query}"

    def __repr__(self) -> str:
        return f"ServerURL({str(self)!r})"


def _parse(text: str, field: str) -> ServerURL:
    if not text:
        raise InvalidOptionError(field, "is empty", _SCHEMES)
    if _BAD_CHARACTER.search(text):
        raise InvalidOptionError(
            field, "has a space or control character", "percent-encode it (a space is %20)"
        )
    if _BAD_ESCAPE.search(text):
        raise InvalidOptionError(
            field, "has a '%' that starts no escape", "write a plain '%' as %25"
        )
    scheme = text.partition(":")[0]
    if scheme in _SEVERAL_NODES:
        raise InvalidOptionError(
            field,
            f"{scheme}:// is not supported by this build",
            "it speaks to one server: write redis://, rediss://, unix:// or embedded:",
        )
    if scheme not in ("redis", "rediss", "unix", "embedded") or ":" not in text:
        # Without "://" the part before the colon may be a user, or a password.
        known = re.fullmatch(r"([a-z][a-z0-9+.-]{0,20})://.*", text)
        problem = f"{known[1]}:// is not a server" if known else "has no scheme"
        raise InvalidOptionError(field, problem, _SCHEMES)
    if scheme == "embedded":
        return _embedded(text, field)
    if not text.startswith(f"{scheme}://"):
        raise InvalidOptionError(field, f"has no '//' after {scheme}:", _SCHEMES)
    with unquoted(field, "cannot be parsed", "check brackets of an IPv6 address"):
        parts = urlsplit(text)
    if "#" in text:
        raise InvalidOptionError(field, "has a '#'", "write a plain '#' as %23")
    options = _options(parts, field)
    tls = check_tls(parts.scheme, options, field)
    user, password = _credentials(parts, field)
    if scheme == "unix":
        path = _socket_path(parts, field)
        db = _db(options.get("db", "0"), field)
        return ServerURL(scheme=scheme, path=path, db=db, username=user, password=password)
    return ServerURL(
        scheme=scheme,
        host=_decode(parts.hostname or "localhost", field),
        port=_port(parts, field),
        db=_tcp_db(parts, options, field),
        username=user,
        password=password,
        **tls,  # type: ignore[arg-type]
    )


def _embedded(text: str, field: str) -> ServerURL:
    rest = _decode(text.removeprefix("embedded:"), field)
    if rest.startswith("//"):
        raise InvalidOptionError(
            field,
            "embedded: names a directory, not a host",
            "write embedded: or embedded:/directory",
        )
    return ServerURL(scheme="embedded", path=rest or None)


def _credentials(parts: SplitResult, field: str) -> tuple[str | None, str | None]:
    user, password = parts.username or None, parts.password
    if user and password is None:
        # A lone name is as often a password in the wrong place as a user, and users are shown.
        raise InvalidOptionError(
            field, "has a user without a password", "write user:password@, user:@ or :password@"
        )
    if user is None and not password:
        return None, None
    return user and _decode(user, field), _decode(password or "", field)


def _socket_path(parts: SplitResult, field: str) -> str:
    if parts.netloc.rpartition("@")[2]:
        raise InvalidOptionError(
            field, "names a host with unix://", "write unix:///absolute/path, with three slashes"
        )
    path = _decode(parts.path, field)
    if path in ("", "/"):
        raise InvalidOptionError(field, "names no socket", "write unix:///absolute/path")
    return path


def _port(parts: SplitResult, field: str) -> int:
    with unquoted(field, "has a wrong port", "a port is a number from 1 to 65535"):
        port = parts.port
        if port == 0:
            raise ValueError
    return _DEFAULT_PORT if port is None else port


def _tcp_db(parts: SplitResult, options: dict[str, str], field: str) -> int:
    from_path = parts.path.removeprefix("/")
    if from_path and "db" in options:
        raise InvalidOptionError(
            field, "names the database twice", "write /0 after the host, or ?db=0"
        )
    return _db(from_path or options.get("db", "0"), field)


def _db(text: str, field: str) -> int:
    # How many databases there are, the server decides; it has 16 unless configured otherwise.
    if re.fullmatch(r"[0-9]{1,5}", text) is None:
        raise InvalidOptionError(field, "has a wrong database", "it is a number from 0, as in /0")
    return int(text)


def _options(parts: SplitResult, field: str) -> dict[str, str]:
    with unquoted(field, "has a wrong query", "write ?name=value&name=value"):
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
                "has the option ssl_cert_reqs, which is not read",
                "certificates are verified; insecure=true switches that off",
            )
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(_OPTIONS)}"
            raise InvalidOptionError(field, "has an unknown option", hint)
        if name in options:
            raise InvalidOptionError(field, f"has the option {name} twice", "write it once")
        options[name] = value
    return options


def _decode(text: str, field: str) -> str:
    with unquoted(field, "has an escape that is no UTF-8", "percent-encode the bytes of UTF-8"):
        decoded = unquote(text, errors="strict")
    if "\0" in decoded:
        raise InvalidOptionError(field, "has a NUL (%00)", "leave it out")
    return decoded
