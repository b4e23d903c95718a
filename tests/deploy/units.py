"""The units of deploy/systemd: what stands in them, and running one the way systemd does."""

from __future__ import annotations

import array
import ctypes.util
import json
import re
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.deploy.checkers import DEPLOY, run
from tests.servers import missing

__all__ = ["PROGRAM", "UNITS", "Manager", "options", "seconds", "started"]

UNITS = ("qworker-daemon.service", "qworker-worker@.service", "qworker-web.service")
PROGRAM = "/opt/qworker/bin/qworker"
#: The folder of apps, in the units.
SERVED = "/srv/qworker"
HARDENING = Path(__file__).with_name("hardening.py")


def options(unit: str) -> list[tuple[str, str]]:
    """List the (name, value) pairs of a unit file in order; a name may occur more than once."""
    lines = (DEPLOY / "systemd" / unit).read_text().splitlines()
    pairs = [line.partition("=") for line in lines if re.match(r"[A-Z]\w*=", line)]
    return [(name, value) for name, _, value in pairs]


def seconds(value: str) -> int:
    return int(value.removesuffix("s"))


@dataclass
class Manager:
    """A process that runs as a unit, and what it has told its systemd: (monotonic seconds, pid, state)."""

    process: subprocess.Popen[bytes]
    log: Path
    told: list[tuple[float, int, str]] = field(default_factory=list)

    @property
    def states(self) -> list[str]:
        """The states sent, in order, without the texts of STATUS."""
        return [state for _, _, state in self.told if not state.startswith("STATUS=")]

    def at(self, state: str) -> list[float]:
        """When a state was sent."""
        return [at for at, _, each in self.told if each == state]

    def wait_for(self, condition: Callable[[], object], within_s: float) -> None:
        """Wait until a condition holds; fails with the log of the process."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, (self.states, self.log.read_text())
            time.sleep(0.02)

    def stop(self, within_s: float) -> tuple[int, float]:
        """Send SIGTERM to the main process, as KillMode=mixed does; returns its exit code and how long it took."""
        begun = time.monotonic()
        self.process.terminate()
        return self.process.wait(within_s), time.monotonic() - begun

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of the log with an event."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [load for load in map(json.loads, lines) if load["event"] == name]


@contextmanager
def started(
    unit: str,
    folder: Path,
    environ: Mapping[str, str],
    *,
    instance: str = "",
    watchdog_s: float | None = None,
    grace: str = "",
) -> Iterator[Manager]:
    """Start what ExecStart says, with the environment and the hardening of the unit as far as that is possible.

    `environ` is what the unit's own environment file would hold. `folder` is the folder of apps and holds the log.
    Shorter than in the unit for the sake of the test: `watchdog_s`, and `grace` instead of 25s.
    """
    if ctypes.util.find_library("seccomp") is None:
        missing("libseccomp is not installed (Debian: libseccomp2)")
    have = dict(options(unit))
    words = shlex.split(have["ExecStart"].replace("%i", instance).replace(SERVED, str(folder)))
    assert words[0] == PROGRAM
    words[0] = str(Path(sys.executable).with_name("qworker"))
    if grace:
        words[words.index("--grace") + 1] = grace
    watchdog_s = seconds(have["WatchdogSec"]) if watchdog_s is None else watchdog_s
    address = str(folder / "notify")
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        **assignments(value for name, value in options(unit) if name == "Environment"),
        **assignments((DEPLOY / "systemd" / "qworker.env").read_text().splitlines()),
        **environ,
        "NOTIFY_SOCKET": address,
        "WATCHDOG_USEC": str(round(watchdog_s * 1e6)),
    }
    environment = {name: value.replace(SERVED, str(folder)) for name, value in environment.items()}
    log, restricted = folder / "log", folder / "restrictions.json"
    restricted.write_text(json.dumps(restrictions(unit)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening, log.open("wb") as out:
        listening.bind(address)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        process = subprocess.Popen(
            [sys.executable, str(HARDENING), str(restricted), *words],
            cwd=have.get("WorkingDirectory", "/").replace(SERVED, str(folder)),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
        manager = Manager(process, log)
        threading.Thread(target=listen, args=(listening, manager), daemon=True).start()
        try:
            yield manager
        finally:
            process.kill()
            process.wait()
            listening.shutdown(socket.SHUT_RDWR)
            # So that the unit may be started again.
            Path(address).unlink()


def listen(listening: socket.socket, manager: Manager) -> None:
    """Note every state with the process that sent it, until the socket is shut down."""
    size = struct.calcsize("3i")
    while True:
        try:
            text, ancillary, _, _ = listening.recvmsg(4096, socket.CMSG_SPACE(size))
        except OSError:
            return
        if not text:
            return
        ((_, _, credentials),) = ancillary
        pid, _, _ = array.array("i", credentials[:size])
        manager.told += [(time.monotonic(), pid, line) for line in text.decode().split("\n")]


def assignments(lines: Iterator[str] | list[str]) -> dict[str, str]:
    """Read NAME=value lines; comments and blank ones are none."""
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name: value for name, _, value in pairs}


def restrictions(unit: str) -> dict[str, Any]:
    """What of the unit's hardening a process can put on itself; see hardening.py."""
    have = dict(options(unit))
    filters = [value for name, value in options(unit) if name == "SystemCallFilter"]
    (allowed,) = [names for names in filters if not names.startswith("~")]
    (denied,) = [names[1:] for names in filters if names.startswith("~")]
    calls = expanded(allowed) - expanded(denied)
    return {
        "calls": sorted(calls | expanded("@default")),
        "families": have["RestrictAddressFamilies"].split(),
        "write_execute": have["MemoryDenyWriteExecute"] != "yes",
        "read_only": have["ProtectSystem"] == "strict",
        "umask": int(have["UMask"], 8),
    }


@cache
def expanded(names: str) -> frozenset[str]:
    """Name the system calls of sets such as "@system-service @timer"."""
    calls: set[str] = set()
    for name in names.split():
        if not name.startswith("@"):
            calls.add(name)
            continue
        done = run("systemd-analyze", "syscall-filter", name)
        assert done.returncode == 0, done.stderr
        lines = [line.strip() for line in done.stdout.splitlines()[1:]]
        calls |= expanded(" ".join(line for line in lines if line and not line.startswith("#")))
    return frozenset(calls)
