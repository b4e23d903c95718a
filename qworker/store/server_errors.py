"""Maps errors of redis-py to `ServerError`s, by the server's error code.

An error reply is definite: the server refused the call. Two cases are not: a script that failed midway, and a
connection that broke after the call was sent.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from redis import exceptions as redis_errors

from qworker.errors import (
    AccessDeniedError,
    BusyError,
    ClusterMovingError,
    InDoubtError,
    LoadingError,
    LoginError,
    NoReplicasError,
    NotPersistedError,
    OutOfMemoryError,
    ReadOnlyError,
    ScriptsNotLoadedError,
    ServerError,
    SlotUnservedError,
    UnavailableError,
    UnfinishedError,
    UnsupportedServerError,
)
from qworker.store.nodes import Address
from qworker.store.topology import RedirectedError

__all__ = ["is_noscript", "map_error"]

# Code → class, and what to do next. https://redis.io/docs/latest/develop/reference/protocol-spec/#simple-errors
_RULES: Final[dict[str, tuple[type[ServerError], str]]] = {
    "LOADING": (LoadingError, "the server is loading its data; try again in a moment"),
    "BUSY": (
        BusyError,
        "a script has been running for a long time; wait for it, or end it with SCRIPT KILL",
    ),
    "READONLY": (ReadOnlyError, "the server is a replica; connect to its master"),
    "MASTERDOWN": (ReadOnlyError, "the server is a replica that lost its master"),
    "UNBLOCKED": (ReadOnlyError, "the server became a replica during the call"),
    "TRYAGAIN": (ClusterMovingError, "the keys are being moved to another node; try again"),
    "CLUSTERDOWN": (ClusterMovingError, "no node of the Cluster serves the keys now"),
    "MISCONF": (
        NotPersistedError,
        "the server cannot write to its disk; free space there, and check its log",
    ),
    "NOREPLICAS": (
        NoReplicasError,
        "too few replicas follow the server (min-replicas-to-write); try again when they do",
    ),
    "OOM": (
        OutOfMemoryError,
        "the server has reached maxmemory; consume messages, or raise maxmemory",
    ),
    "NOAUTH": (
        LoginError,
        "the server requires a password; put user:password@ into the URL (QWORKER_URL)",
    ),
    "WRONGPASS": (
        LoginError,
        "wrong user or password; check them in the URL (QWORKER_URL)",
    ),
    "NOPERM": (
        AccessDeniedError,
        "the user's ACL forbids this command or key; give it the rules that qworker acl prints",
    ),
}

#: The end of an error that was raised while a script ran; Valkey leaves out the SHA1.
_IN_A_SCRIPT: Final = re.compile(r" script: (?:[0-9a-f]{40}, )?on @user_script:(\d+)\.$")
#: The server checks these before the first write of a script (script.c, scriptVerifyWriteCommandAllow and
#: scriptVerifyOOM), so nothing was written.
_BEFORE_WRITES: Final = frozenset(("OOM", "READONLY", "MASTERDOWN", "MISCONF", "NOREPLICAS"))
#: What follows CLUSTERDOWN if the node serves other slots.
_UNSERVED: Final = "Hash slot not served"
_LOAD: Final = "'script|load'"
_WRONG_TYPE: Final = "WRONGTYPE"
_TOO_MANY_CLIENTS: Final = "max number of clients reached"
_TEXT_LIMIT: Final = 300

Key = str | bytes


def is_noscript(error: BaseException) -> bool:
    """Say whether the server lacks the script of an EVALSHA: load it and call again."""
    return isinstance(error, redis_errors.NoScriptError)


def map_error(
    error: Exception, *, sent: bool, reads: bool = False, key: Key | None = None
) -> ServerError:
    """Turn an exception of redis-py, or an OSError, into a named error, for you to raise from it.

    `sent`: the last byte of the call may have left. A connection that broke is then an `InDoubtError`, otherwise, and
    for a call that only `reads`, an `UnavailableError`. Error replies ignore `sent`: they are definite, except for the
    `UnfinishedError` of a script. An unknown error reply becomes a plain `ServerError`. `key`: that of a plain command,
    which may hold another type.
    """
    if isinstance(error, ServerError):
        return error
    if error.args and isinstance(error.args[0], redis_errors.RedisError):
        # redis.asyncio wraps errors of a handshake over a Unix socket in a ConnectionError.
        error = error.args[0]
    text = _text(error)
    if isinstance(error, redis_errors.AskError):
        # Also MOVED, a subclass.
        return RedirectedError(
            f"the keys are on another node of the Cluster (the server said: {text})",
            error.slot_id,
            Address(str(error.host), error.port),
            asking=not isinstance(error, redis_errors.MovedError),
        )
    code = getattr(error, "status_code", None) or text.partition(" ")[0]
    inside = _IN_A_SCRIPT.search(str(error))
    if inside and code not in _BEFORE_WRITES and isinstance(error, redis_errors.RedisError):
        return UnfinishedError(text, int(inside[1]))
    if (code == "NOPERM" and _LOAD in text) or is_noscript(error):
        return _scripts_missing(text, forbidden=code == "NOPERM")
    if code in _RULES and isinstance(error, redis_errors.RedisError):
        kind, advice = _RULES[code]
        if code == "CLUSTERDOWN" and _UNSERVED in text:
            kind = SlotUnservedError
        return kind(f"{advice} (the server said: {_with_code(code, text)})")
    if isinstance(error, redis_errors.AuthenticationError):
        return LoginError(
            "the server refused user and password; check them in the URL (QWORKER_URL) "
            f"(the server said: {text})"
        )
    if _TOO_MANY_CLIENTS in text:
        return UnavailableError(
            "the server accepts no more connections; raise its maxclients, or run fewer processes"
        )
    if isinstance(error, redis_errors.InvalidResponse) and not sent:
        return UnsupportedServerError(
            f"the server does not speak the Redis protocol; check the URL ({text})"
        )
    if isinstance(error, redis_errors.ResponseError):
        return _refused(_with_code(code, text) if code == _WRONG_TYPE else text, key)
    if isinstance(error, _BROKEN):
        return _broken(text, sent=sent, reads=reads)
    return ServerError(f"the call failed ({text})")


def _scripts_missing(text: str, *, forbidden: bool) -> ScriptsNotLoadedError:
    """Make the error for a missing script. `forbidden`: this user may not load it; otherwise it was loaded before."""
    if forbidden:
        # The call did not run; a daemon loads the script for users who may not.
        return ScriptsNotLoadedError(
            f"{_scripts()} are not loaded and this user may not load them; the daemon loads them "
            f"within seconds, or run: qworker scripts load (the server said: {text})"
        )
    return ScriptsNotLoadedError(
        f"{_scripts()} are not loaded: the server keeps forgetting them (SCRIPT FLUSH?), or was replaced; "
        f"try again, or run: qworker scripts load (the server said: {text})"
    )


def _scripts() -> str:
    try:
        return f"the scripts of qworker {version('qworker-redis')}"
    except PackageNotFoundError:
        return "the scripts of qworker"


#: No reply, half of one, or (`InvalidResponse`) bytes that make no sense.
_BROKEN: Final = (
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.InvalidResponse,
    OSError,
    EOFError,
)


def _broken(text: str, *, sent: bool, reads: bool) -> ServerError:
    if sent and reads:
        return UnavailableError(
            f"the server did not answer a call that only reads, so nothing was changed; try again ({text})"
        )
    if sent:
        return InDoubtError(
            "the call was sent and no reply came, so it may or may not have run; "
            f"repeat only the identical call ({text})"
        )
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return UnavailableError(
            "the server's TLS certificate is not accepted; check ssl_ca_certs and the host name "
            f"in the URL ({text})"
        )
    return UnavailableError(
        f"the server was not reached, nothing was sent; check that it runs, and the URL ({text})"
    )


def _refused(text: str, key: Key | None) -> ServerError:
    if key is not None and text.startswith(_WRONG_TYPE):
        name = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
        return ServerError(
            f"key {name!r} holds another type than qworker stores there: rename or delete it ({text})"
        )
    if text.startswith(("unknown command", "ERR unknown command", "unknown subcommand")):
        return UnsupportedServerError(
            f"the server lacks or has renamed a command that qworker needs ({text})"
        )
    return ServerError(f"the server refused the call ({text})")


def _with_code(code: str, text: str) -> str:
    return text if text.startswith(code) else f"{code} {text}"


def _text(error: Exception) -> str:
    text = str(error) or type(error).__name__
    # The server quotes the arguments of an unknown command: a password (AUTH), or bodies (EVALSHA). They are removed
    # from the cause as well, which tracebacks print.
    head, quoted, _ = text.partition(", with args beginning with")
    if quoted:
        error.args = (head,)
    shown = "".join(char if char.isprintable() else "?" for char in head)
    return shown if len(shown) <= _TEXT_LIMIT else shown[: _TEXT_LIMIT - 3] + "..."
