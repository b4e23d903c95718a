"""Plant each mutation and see which row catches it, within five minutes."""

from __future__ import annotations

import time
from collections.abc import Iterable

from verification.faults.mutations import MUTATIONS
from verification.faults.playing import Played, play
from verification.faults.row import ALWAYS
from verification.faults.rows import ROWS

__all__ = ["catch", "catch_all"]

MAX_S = 300.0
#: Words of problems that no busy machine makes: a figure that is late proves nothing.
SAFETY = (
    *(kind.replace("_", " ") for kind in ALWAYS),
    "fsck",
    "no drained queue",
    "sent_by_server",
    "locked",
    "beside",
    "debounced_lost",
    "replaced_ran",
    "throttled_twice",
)


def catch(name: str, *, seed: int, seconds: float = 0.0) -> Played | None:
    """Play rows with a mutation planted until one fails for safety's sake; None where none did in time."""
    begun = time.monotonic()
    while True:
        for row in MUTATIONS[name].rows:
            played = play(ROWS[row], seed=seed, seconds=seconds, mutation=name, patience=1e9)
            if any(word in problem for problem in played.problems for word in SAFETY):
                return played
            if time.monotonic() - begun > MAX_S:
                return None
        seed += 1


def catch_all(names: Iterable[str], *, seed: int, seconds: float = 0.0) -> bool:
    """Plant mutations one after the other, and say which row caught each; whether all were caught."""
    missed = 0
    for name in names:
        begun = time.monotonic()
        played = catch(name, seed=seed, seconds=seconds)
        took_s = time.monotonic() - begun
        print(f"{name}: {MUTATIONS[name].defect}", flush=True)
        if played is None:
            missed += 1
            print(f"    NOT CAUGHT in {took_s:.0f} s", flush=True)
            continue
        print(f"    caught by {played.row.name} ({played.row.fault}) in {took_s:.0f} s", flush=True)
        for problem in played.problems:
            print(f"    {problem}", flush=True)
    print(f"{missed} of them not caught, seed {seed}" if missed else f"all caught, seed {seed}")
    return not missed
