"""Private stores: a server for one process, gone with it however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from qworker.errors import StoreError
from qworker.store.embedded import engines as engine_module
from qworker.store.embedded.engines import ask
from qworker.store.embedded.private import PrivateStore
from tests import servers

pytestmark = pytest.mark.slow  # starts processes

OWNER = """
import sys, time
from qworker.store.embedded.private import PrivateStore
with PrivateStore() as store:
    print(store.pid, store.directory, flush=True)
    {body}
"""


def wait_until_gone(pid, directory, seconds=5):
    deadline = time.monotonic() + seconds
    while psutil.pid_exists(pid) or os.path.exists(directory):
        assert time.monotonic() < deadline, f"{pid} or {directory} is still there"
        time.sleep(0.01)


def start_owner(body):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(body=body)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pid, directory = owner.stdout.readline().split()
    return owner, int(pid), directory


def test_lives_as_long_as_its_context():
    """The server answers inside the context; after it, server and directory are gone."""
    with PrivateStore() as store:
        assert ask(store.url, "PING") == b"PONG"
        assert ask(store.url, "CONFIG", "GET", "appendonly") == [b"appendonly", b"yes"]
        assert oct(store.directory.stat().st_mode)[-3:] == "700"
        assert oct(store.socket.stat().st_mode)[-3:] == "600"
        assert store.engine.name == "valkey"
    assert not psutil.pid_exists(store.pid)
    assert not store.directory.exists()


def test_stores_are_separate():
    """Two stores share nothing."""
    with PrivateStore() as one, PrivateStore() as two:
        ask(one.url, "SET", "k", "1")
        assert ask(two.url, "GET", "k") is None


def test_can_be_entered_again():
    """The same object starts a new and empty store each time."""
    store = PrivateStore()
    for _ in range(2):
        with store:
            assert ask(store.url, "DBSIZE") == 0
            ask(store.url, "SET", "k", "1")


def test_arguments_win():
    """Extra arguments override the defaults."""
    with PrivateStore(arguments=["--appendonly", "no", "--maxmemory", "7mb"]) as store:
        assert ask(store.url, "CONFIG", "GET", "appendonly") == [b"appendonly", b"no"]
        assert ask(store.url, "CONFIG", "GET", "maxmemory") == [b"maxmemory", b"7340032"]


@pytest.mark.parametrize("engine", ["valkey", "redis"])
def test_a_binary_can_be_given(engine):
    """Both engines run a private store."""
    with PrivateStore(binary=servers.binary_of(engine)) as store:
        assert store.engine.name == engine
        assert ask(store.url, "PING") == b"PONG"


def test_the_error_of_a_server_that_does_not_start_has_the_reason(tmp_path, monkeypatch):
    """The error quotes the end of its log, and nothing is left behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with (
        pytest.raises(StoreError, match=r"valkey 9.* did not start: .*Bad directive"),
        PrivateStore(arguments=["--no", "1"]),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_no_engine(monkeypatch):
    """Without a server the error says what to install, or which engine was asked for."""
    monkeypatch.setattr("qworker.store.embedded.private.find_engines", lambda: iter(()))
    with pytest.raises(StoreError, match="no Redis or Valkey server"), PrivateStore():
        pass
    with (
        pytest.raises(StoreError, match=r"^found no redis server \(7.0 or newer\)"),
        PrivateStore(engine="redis"),
    ):
        pass
    with (
        pytest.raises(StoreError, match=r"/bin/true is not a Redis or Valkey server"),
        PrivateStore(binary="/bin/true"),
    ):
        pass


def test_the_engine_asked_for_is_used(monkeypatch):
    """engine= skips the engines before it."""
    binary = servers.binary_of("redis")
    monkeypatch.setattr(
        engine_module, "find_programs", lambda name: [binary] if name == "redis-server" else []
    )
    with PrivateStore(engine="redis") as store:
        assert store.engine.binary == binary


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(
            pytest.param(number, marks=pytest.mark.nightly("test_ends_with_its_owner"))
            for number in (signal.SIGTERM, signal.SIGINT)
        ),
    ],
)
def test_ends_with_its_owner(number):
    """The store ends when its owner is killed, by any signal."""
    owner, pid, directory = start_owner("time.sleep(60)")
    with owner:
        owner.send_signal(number)
    wait_until_gone(pid, directory)


def test_ctrl_c_does_not_reach_the_server():
    """Ctrl-C goes to the owner's process group, and the store stays until the owner stops it."""
    body = "\n    ".join(
        (
            "from qworker.store.embedded.engines import ask",
            "try: print('ready', flush=True); time.sleep(60)",
            "except KeyboardInterrupt: print(ask(store.url, 'PING'), flush=True)",
        )
    )
    owner, pid, directory = start_owner(body)
    with owner:
        assert owner.stdout.readline() == "ready\n"
        os.killpg(owner.pid, signal.SIGINT)
        assert owner.stdout.readline() == "b'PONG'\n"
    assert owner.returncode == 0
    wait_until_gone(pid, directory)


def test_a_forked_child_leaves_it_alone():
    """A forked child that leaves the context does not stop its parent's store."""
    body = "\n    ".join(
        (
            "import os",
            "from qworker.store.embedded.engines import ask",
            "child = os.fork()",
            "if child == 0: sys.exit()",
            "os.waitpid(child, 0)",
            "print(ask(store.url, 'PING'), flush=True)",
        )
    )
    owner, pid, directory = start_owner(body)
    with owner:
        assert owner.stdout.readline() == "b'PONG'\n"
    wait_until_gone(pid, directory)


def test_a_forked_child_that_lives_on_does_not_keep_the_store():
    """Leaving the context stops the store even if a forked child still has its file descriptors."""
    body = "import os\n    if os.fork() == 0: sys.stdout.close(); os.close(1); time.sleep(1); os._exit(0)"
    owner, pid, directory = start_owner(body)
    with owner:
        owner.wait(60)
        wait_until_gone(pid, directory, seconds=0.5)
