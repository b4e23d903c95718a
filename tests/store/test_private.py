"""Private stores: a server for one process, gone with it whatever way it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from qworker.errors import StoreError
from qworker.store import engine as engine_module
from qworker.store.engine import ask
from qworker.store.private import PrivateStore
from tests import servers

OWNER = """
import sys, time
from qworker.store.private import PrivateStore
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
    """The server answers inside the context, and is gone with its directory after it."""
    with PrivateStore() as store:
        assert ask(store.url, "PING") == b"PONG"
        assert ask(store.url, "CONFIG", "GET", "appendonly") == [b"appendonly", b"yes"]
        assert oct(store.directory.stat().st_mode)[-3:] == "700"
        assert oct(store.socket.stat().st_mode)[-3:] == "600"
        assert store.engine.name == "valkey"
    assert not psutil.pid_exists(store.pid)
    assert not store.directory.exists()


def test_each_is_its_own():
    """Two stores share nothing."""
    with PrivateStore() as one, PrivateStore() as two:
        ask(one.url, "SET", "k", "1")
        assert ask(two.url, "GET", "k") is None


def test_may_be_entered_again():
    """The same object gives a new and empty store each time."""
    store = PrivateStore()
    for _ in range(2):
        with store:
            assert ask(store.url, "DBSIZE") == 0
            ask(store.url, "SET", "k", "1")


def test_arguments_win():
    """Extra arguments are added and override ours."""
    with PrivateStore(arguments=["--appendonly", "no", "--maxmemory", "7mb"]) as store:
        assert ask(store.url, "CONFIG", "GET", "appendonly") == [b"appendonly", b"no"]
        assert ask(store.url, "CONFIG", "GET", "maxmemory") == [b"maxmemory", b"7340032"]


@pytest.mark.parametrize("engine", ["valkey", "redis"])
def test_a_binary_may_be_given(engine):
    """Each engine runs a private store."""
    with PrivateStore(binary=servers.binary_of(engine)) as store:
        assert store.engine.name == engine
        assert ask(store.url, "PING") == b"PONG"


def test_a_server_that_does_not_start_says_why(tmp_path, monkeypatch):
    """The end of its log is in the error, and nothing is left behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with (
        pytest.raises(StoreError, match=r"valkey 9.* did not start: .*Bad directive"),
        PrivateStore(arguments=["--no", "1"]),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_no_engine(monkeypatch):
    """Without a server the error names what to install; with a wish, what was wished for."""
    monkeypatch.setattr("qworker.store.private.find_engines", lambda: iter(()))
    with pytest.raises(StoreError, match="no Redis or Valkey server"), PrivateStore():
        pass
    with (
        pytest.raises(StoreError, match=r"^no redis server \(7.0 or newer\) was found"),
        PrivateStore(engine="redis"),
    ):
        pass
    with (
        pytest.raises(StoreError, match=r"/bin/true is no Redis or Valkey server"),
        PrivateStore(binary="/bin/true"),
    ):
        pass


def test_the_wished_engine_is_taken(monkeypatch):
    """engine= passes over what stands before it."""
    binary = servers.binary_of("redis")
    monkeypatch.setattr(
        engine_module, "find_programs", lambda name: [binary] if name == "redis-server" else []
    )
    with PrivateStore(engine="redis") as store:
        assert store.engine.binary == binary


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ends_with_its_owner(number):
    """An owner that is killed, in any way, takes its store along."""
    owner, pid, directory = start_owner("time.sleep(60)")
    with owner:
        owner.send_signal(number)
    wait_until_gone(pid, directory)


def test_ctrl_c_does_not_reach_the_server():
    """Ctrl-C goes to the owner's whole process group, and the store outlives it until the owner is done with it."""
    body = "\n    ".join(
        (
            "from qworker.store.engine import ask",
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
    """A child that leaves the context by falling out of it does not end its parent's store."""
    body = "\n    ".join(
        (
            "import os",
            "from qworker.store.engine import ask",
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


def test_a_forked_child_that_lives_on_does_not_keep_it():
    """Leaving the context ends the store also while a forked child holds what it inherited."""
    body = "import os\n    if os.fork() == 0: sys.stdout.close(); os.close(1); time.sleep(1); os._exit(0)"
    owner, pid, directory = start_owner(body)
    with owner:
        owner.wait(5)
        wait_until_gone(pid, directory, seconds=0.5)
