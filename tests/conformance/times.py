"""Letting leases run out without waiting for it: their deadlines are moved, as if the time had passed."""

from __future__ import annotations

from qworker.daemon.reaper import Reaper
from tests.conformance.conftest import Caller

__all__ = ["daemon_comes_by", "let_clock_pass", "let_leases_run_out", "let_pass"]


def let_pass(caller: Caller, seconds: float, name: str = "emails") -> None:
    """Make every lease of a queue, and every delayed message, older by `seconds`."""
    keys = caller.keys(name)
    for key in (keys.unacked, keys.delayed):
        flat = caller.ask("ZRANGE", key, 0, -1, "WITHSCORES")
        for member, score in zip(flat[::2], flat[1::2], strict=True):
            caller.ask("ZADD", key, f"{float(score) - seconds * 1000:.0f}", member)
    # As if reaped all the time: a gap would grant grace.
    caller.ask("HSET", keys.stats, "reaped_ms", caller.now_ms())


def let_leases_run_out(caller: Caller, name: str = "emails") -> None:
    """Let more than the default visibility of 30 s pass."""
    let_pass(caller, 31, name)


def let_clock_pass(caller: Caller, ms: int) -> None:
    """Wait until the server's clock is more than `ms` further."""
    end_ms = caller.now_ms() + ms
    while caller.now_ms() <= end_ms:
        pass


def daemon_comes_by(caller: Caller) -> None:
    """Make one pass of the reaper, as the daemon does every second."""
    Reaper(caller.sync_client, caller.namespace).tick()
