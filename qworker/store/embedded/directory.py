"""The directory of an embedded store: its files, its two locks and its socket.

Beside the server's own `appendonlydir/` it contains

    lock          held by the process that checks, starts or stops the server: one at a time
    running       held by the server while it lives
    engine.json   the engine that wrote the data, and its socket; written before that engine starts
    s             the socket, unless this path is too long for one
    pid           written by the server; read only if the socket is gone
    server.log

Why the server holds a lock: two servers on one AOF would destroy it, and only the lock reliably shows that one runs.
The server inherits the file descriptor, and the kernel drops the lock when its last copy closes, however the server
ends. Pids are reused, and sockets survive a `kill -9` or are deleted by cleaners of temporary directories.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from qworker.errors import StoreError
from qworker.store.embedded.engines import (
    DEADLINE_S,
    POLL_S,
    Engine,
    fits_socket,
    last_lines,
    socket_directory,
)

__all__ = ["StoreDirectory"]

_FILES: Final = frozenset(
    {"lock", "running", "engine.json", "engine.json.new", "s", "pid", "server.log"}
)


class StoreDirectory:
    """The files of one store. Keeps nothing open between calls."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """Create the directory (0700), or check that it belongs to this user and is a store or empty."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.check()
            names = {entry.name for entry in self.path.iterdir()}
            if "engine.json" not in names and (foreign := sorted(names - _FILES)):
                raise StoreError(
                    f"{self.path} is neither a store nor empty (it contains {foreign[0]!r}); "
                    "name an empty directory, or one that does not exist"
                )
            if self.path.stat().st_mode & 0o077:
                self.path.chmod(0o700)
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot hold a store ({error.strerror}); "
                "name a directory that you can write to"
            ) from error

    def check(self) -> None:
        """Raise `StoreError` if another user may have put anything here: its data is loaded, its socket connected to.

        Also for root, which must not use a directory of another user. The directory need not exist.
        """
        try:
            folder = self.path.stat()
            entries = [
                (entry.name, entry.stat(follow_symlinks=False)) for entry in os.scandir(self.path)
            ]
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot hold a store ({error.strerror}); name a directory of yours"
            ) from error
        if folder.st_uid != os.geteuid():
            raise StoreError(f"{self.path} belongs to another user; name a directory of yours")
        if entries and folder.st_mode & 0o022:
            raise StoreError(
                f"other users can write to {self.path} and may have changed its content; "
                f"if they have not: chmod 700 {self.path}"
            )
        for name, entry in entries:
            if entry.st_uid != folder.st_uid or stat.S_ISLNK(entry.st_mode):
                raise StoreError(
                    f"{self.path / name} {'is a link' if stat.S_ISLNK(entry.st_mode) else 'belongs to another user'}, "
                    "so qworker did not create it; name another directory"
                )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from checking, starting and stopping the server; waits up to 20 s for them."""
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
        """Take the server's lock; None if a server holds it. The caller closes the descriptor."""
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
        """Find the running server by its pid file; None if that pid is not the server's."""
        try:
            process = psutil.Process(int((self.path / "pid").read_text()))
            # The pid may have been reused, but no other process has this working directory.
            return process if self.server_lives() and Path(process.cwd()) == self.path else None
        except (OSError, ValueError, psutil.Error):
            return None

    @property
    def socket(self) -> Path:
        """The socket that the server listens on, or will listen on if the path fits."""
        own = self.path / "s"
        recorded = None if fits_socket(own) else self.record().get("socket")
        # A record can name any socket; use only one in a private directory.
        return Path(recorded) if recorded and _is_private(Path(recorded)) else own

    def choose_socket(self) -> Path:
        """Choose the next server's socket: here, or in a new private directory if this path is too long."""
        # The new directory has a random name: no other user can have prepared it.
        return self.socket if fits_socket(self.socket) else socket_directory() / "s"

    def remove_socket(self) -> None:
        """Remove the socket's private directory, if it has one."""
        with suppress(OSError):
            if self.socket.parent != self.path:
                self.socket.parent.rmdir()

    def record(self) -> dict[str, str]:
        """Read engine.json: engine, version, binary, socket; empty if there is none.

        `binary` is for information only: it is never run.
        """
        path = self.path / "engine.json"
        try:
            record = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{path} cannot be read ({error}); it says which engine wrote the data: "
                "restore it, or move the directory away to start afresh"
            ) from error
        if not isinstance(record, dict):
            raise StoreError(f"{path} is not a JSON object; restore it, or move the directory away")
        return {name: value for name, value in record.items() if isinstance(value, str)}

    def write_record(self, engine: Engine, socket: Path) -> None:
        """Write engine.json atomically."""
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
    import fcntl  # Windows has none, but can import this module.

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_private(socket: Path) -> bool:
    """Say whether the socket's directory is not a link, belongs to this user and is closed to others."""
    try:
        folder = socket.parent.lstat()
    except OSError:
        return False
    private = folder.st_uid == os.geteuid() and not folder.st_mode & 0o077
    return stat.S_ISDIR(folder.st_mode) and private
