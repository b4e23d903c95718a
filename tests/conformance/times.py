"""Letting leases run out without waiting for it: their deadlines are moved, as if the time had passed."""

from __future__ import annotations

from qworker.daemon.reaper import Reaper
from tests.conformance.conftest import Place

__all__ = ["daemon_comes_by", "let_clock_pass", "let_leases_run_out", "let_pass"]


def let_pass(place: Place, seconds: float, name: str = "emails") -> None:
    """Make every lease of a queue, and every delayed message, older by `seconds`."""
    keys = place.keys(name)
    for key in (keys.unacked, keys.delayed):
        flat = place.ask("ZRANGE", key, 0, -1, "WITHSCORES")
        for member, score in zip(flat[::2], flat[1::2], strict=True):
            place.ask("ZADD", key, f"{float(score) - seconds * 1000:.0f}", member)
    # As if reaped all the time: a gap would grant grace.
    place.ask("HSET", keys.stats, "reaped_ms", place.now_ms())


def let_leases_run_out(place: Place, name: str = "emails") -> None:
    """Let more than the default visibility of 30 s pass."""
    let_pass(place, 31, name)


def let_clock_pass(place: Place, ms: int) -> None:
    """Wait until the server's clock is more than `ms` further."""
    end_ms = place.now_ms() + ms
    while place.now_ms() <= end_ms:
        pass


def daemon_comes_by(place: Place) -> None:
    """Make one pass of the reaper, as the daemon does every second."""
    Reaper(place.sync_client, place.namespace).tick()
