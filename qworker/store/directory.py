"""The directory of an embedded store: its files, its two locks, and where its socket is.

Besides the server's own `appendonlydir/` it holds

    lock          held by the process that looks, starts or stops: one at a time
    running       held by the server itself for as long as it lives
    engine.json   which engine wrote the data, and where its socket is; written before that engine starts
    s             the socket, unless this path is too long for one
    pid           written by the server; read only where the socket is gone
    server.log

Why the server holds a lock: it inherits that one file descriptor, and the kernel drops the lock when the last copy of
it closes, whatever way the server ends. Pids come again, and sockets are left behind by a `kill -9` or deleted by
whoever cleans temporary directories; the lock is right in all of these, and two servers on one AOF would destroy it.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from qworker.errors import StoreError
from qworker.store.engine import DEADLINE_S, POLL_S, SOCKET_PATH_LIMIT, Engine, last_lines

__all__ = ["StoreDirectory"]

_FILES: Final = frozenset(
    {"lock", "running", "engine.json", "engine.json.new", "s", "pid", "server.log"}
)


class StoreDirectory:
    """The files of one store. Holds nothing open between calls."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """Make the directory (0700), or check that it is ours: of our user, and a store or empty."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.check()
            found = self.path.stat()
            names = {entry.name for entry in self.path.iterdir()}
            if "engine.json" not in names and (strange := sorted(names - _FILES)):
                raise StoreError(
                    f"{self.path} is no store and not empty (it holds {strange[0]!r}); "
                    "name an empty directory, or one that does not exist"
                )
            if found.st_mode & 0o077:
                self.path.chmod(0o700)
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot hold a store ({error.strerror}); "
                "name a directory that you can write to"
            ) from error

    def check(self) -> None:
        """Raise `StoreError` if another user may have put anything here: what it holds is loaded, and connected to.

        Root is no exception: a directory that root made for somebody else is not root's. One that does not exist is
        nobody's yet.
        """
        try:
            found = self.path.stat()
            entries = [
                (entry.name, entry.stat(follow_symlinks=False)) for entry in os.scandir(self.path)
            ]
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot hold a store ({error.strerror}); name a directory of yours"
            ) from error
        if found.st_uid != os.geteuid():
            raise StoreError(f"{self.path} belongs to another user; name a directory of yours")
        if entries and found.st_mode & 0o022:
            raise StoreError(
                f"{self.path} can be written to by other users, who may have changed what it holds; "
                f"if they have not: chmod 700 {self.path}"
            )
        for name, entry in entries:
            if entry.st_uid != found.st_uid or stat.S_ISLNK(entry.st_mode):
                raise StoreError(
                    f"{self.path / name} {'is a link' if stat.S_ISLNK(entry.st_mode) else 'belongs to another user'}, "
                    "which no server of ours made; name another directory"
                )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process from looking, starting and stopping; waits for up to 20 s."""
        lock = self._open("lock")
        try:
            deadline = time.monotonic() + 2 * DEADLINE_S
            while not _try_lock(lock):
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"another process has been starting or stopping the store in {self.path} for "
                        f"{2 * DEADLINE_S:g} s; find it (fuser {self.path / 'lock'}) and end it"
                    )
                time.sleep(POLL_S)
            yield
        finally:
            os.close(lock)

    def take_running(self) -> int | None:
        """Take the lock that a server holds while it lives; None if one lives. The caller closes it."""
        lock = self._open("running")
        if _try_lock(lock):
            return lock
        os.close(lock)
        return None

    def server_lives(self) -> bool:
        """Say whether a server runs on this directory, answering or not."""
        lock = self.take_running()
        if lock is not None:
            os.close(lock)
        return lock is None

    def server_process(self) -> psutil.Process | None:
        """Find the living server by its pid file; None if that pid is not the server's."""
        try:
            process = psutil.Process(int((self.path / "pid").read_text()))
            # A pid may have come again; no other process works in this directory under this name.
            return process if self.server_lives() and Path(process.cwd()) == self.path else None
        except (OSError, ValueError, psutil.Error):
            return None

    @property
    def socket(self) -> Path:
        """Where the server listens, or will listen if the path fits."""
        near = self.path / "s"
        recorded = None if _fits(near) else self.record().get("socket")
        # A record may name any place; only one of ours is spoken to.
        return Path(recorded) if recorded and _is_private(Path(recorded)) else near

    def place_socket(self) -> Path:
        """Choose where the next server listens: here, or in a private directory if this path is too long."""
        if _fits(self.socket):
            return self.socket
        # A name that nobody can foresee, made by us with mode 0700: nothing can be waiting there.
        for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108
            if _fits(Path(parent, "qworker-12345678", "s")):
                return Path(tempfile.mkdtemp(prefix="qworker-", dir=parent), "s")
        raise StoreError(f"{self.path} is too long for a socket; name a shorter directory")

    def remove_socket(self) -> None:
        """Remove the private directory of the socket, if it has one."""
        with suppress(OSError):
            if self.socket.parent != self.path:
                self.socket.parent.rmdir()

    def record(self) -> dict[str, str]:
        """Read engine.json: engine, version, binary, socket; empty if there is none.

        `binary` is for people: it is never run.
        """
        path = self.path / "engine.json"
        try:
            record = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{path} cannot be read ({error}); it says which engine wrote the data: "
                "restore it, or move the directory away and start anew"
            ) from error
        if not isinstance(record, dict):
            raise StoreError(f"{path} holds no object; restore it, or move the directory away")
        return {name: value for name, value in record.items() if isinstance(value, str)}

    def write_record(self, engine: Engine, socket: Path) -> None:
        """Write engine.json, whole or not at all."""
        record = {
            "engine": engine.name,
            "version": engine.version,
            "binary": engine.binary,
            "socket": str(socket),
        }
        new = self.path / "engine.json.new"
        try:
            new.touch(mode=0o600)
            new.write_text(json.dumps(record, indent=1) + "\n")
            new.replace(self.path / "engine.json")
        except OSError as error:
            raise StoreError(f"{new} cannot be written: {error.strerror}") from error

    def log(self) -> str:
        """Quote the end of the server's log."""
        return last_lines(self.path / "server.log")

    def _open(self, name: str) -> int:
        path = self.path / name
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened ({error.strerror})") from error


def _try_lock(descriptor: int) -> bool:
    import fcntl  # Not on Windows, where this module may be imported and not used.

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fits(socket: Path) -> bool:
    return len(os.fsencode(socket)) <= SOCKET_PATH_LIMIT


def _is_private(socket: Path) -> bool:
    """Say whether the socket's directory is a real one, of our user, closed to others."""
    try:
        found = socket.parent.lstat()
    except OSError:
        return False
    mine = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return stat.S_ISDIR(found.st_mode) and mine
