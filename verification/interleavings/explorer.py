"""Take every step from each of some states: what a process of the search does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from zlib import crc32

from verification.interleavings.bench import BURNED, Bench, Trial
from verification.interleavings.fixed import KEYS, Call
from verification.interleavings.promises import doubled
from verification.interleavings.story import Breach, Next, Story, runs
from verification.interleavings.view import view
from verification.interleavings.world import State, Tried, World

__all__ = ["Explorer", "Share", "digest"]

#: Of this many queues one is read by `qworker fsck` as well.
_FSCK_ONE_OF: Final = 50
#: Writes whose failure a call survives.
_NEVER_RAISED: Final = (f"HINCRBY {KEYS.stats}", f"XADD {KEYS.journal}", f"RPUSH {KEYS.wake}")
#: Calls tried that are remembered.
_REMEMBERED: Final = 400_000


def digest(state: State) -> bytes:
    """A short name of a state."""
    return hashlib.blake2b(b"|".join(state), digest_size=12).digest()


@dataclass
class Share:
    """What one process found from the states that it was given."""

    #: State → the state that it was reached from.
    new: dict[bytes, tuple[bytes, State]] = field(default_factory=dict)
    transitions: int = 0
    calls: int = 0
    breach: bytes | None = None


class Explorer:
    """Takes steps in one world on one bench."""

    def __init__(self, world: World, bench: Bench) -> None:
        self.world = world
        self._bench = bench
        self._tried: dict[tuple[bytes, Call], Tried] = {}
        self._damage: dict[bytes, str | None] = {}
        self._checked: dict[bytes, str] = {}
        #: Problems that were reported before.
        self._told: set[bytes] = set()
        self.calls = 0

    def begin(self) -> State:
        """The first state."""
        return self.world.begin(self._bench)

    def share(self, states: Sequence[tuple[bytes, State]]) -> Share:
        """Take every step from each state."""
        result, calls = Share(), self.calls
        for trial in self.following(states):
            result.transitions += 1
            if trial.after.problem is not None:
                result.breach = trial.origin
                break
            name = digest(trial.after.state)
            if name not in self._told:
                self._told.add(name)
                result.new[name] = (trial.origin, trial.after.state)
        result.calls = self.calls - calls
        return result

    def following(self, states: Sequence[tuple[bytes, State]]) -> Iterator[Next]:
        """Every step from each state, in order."""
        if len(self._tried) > _REMEMBERED:
            self._tried.clear()
        courses = []
        for name, state in states:
            clients = state.unpacked
            courses.append((name, state, clients, list(self.world.steps(state, clients))))
        self._try(
            {
                Trial(state.table, step.call): None
                for _, state, _, steps in courses
                for step in steps
                if step.call is not None and runs(step)
            }
        )
        for name, state, clients, steps in courses:
            for step in steps:
                tried = None
                if step.call is not None and runs(step):
                    tried = self._tried[state.table, step.call]
                yield Next(name, step, tried, self.world.after(state, clients, step, tried))

    def _try(self, trials: Mapping[Trial, None]) -> None:
        missing = [each for each in trials if (each.table, each.call) not in self._tried]
        self.calls += len(missing)
        for trial, outcome in zip(missing, list(self._bench.run(missing)), strict=True):
            tried = Tried.of(trial, outcome)
            if tried.problem is None and (findings := self._findings(tried.table)):
                tried = replace(tried, problem=f"fsck finds: {findings}")
            self._tried[trial.table, trial.call] = tried
        if self.world.writes:
            self._fail_writes(missing)

    def _findings(self, table: bytes) -> str:
        """What fsck finds in a queue; it looks at one of many, because it takes a hundred times as long as a call."""
        if crc32(table) % _FSCK_ONE_OF:
            return ""
        if table not in self._checked:
            self._checked[table] = "; ".join(self._bench.checked(table, repair=False)[1])
        return self._checked[table]

    def _fail_writes(self, trials: Sequence[Trial]) -> None:
        """Let each write of each call fail: nothing may be lost, and fsck must repair the rest."""
        fused = [
            each._replace(fuse=number)
            for each in trials
            for number in range(1, self.world.writes + 1)
        ]
        self.calls += len(fused)
        for trial, outcome in zip(fused, list(self._bench.run(fused)), strict=True):
            if not isinstance(outcome.result, str) or BURNED not in outcome.result:
                continue
            whole = self._tried[trial.table, trial.call]
            ends = view(trial.table).locations.keys() - view(whole.table).locations.keys()
            left = view(outcome.written.table).locations.keys()
            problem = None
            if lost := view(trial.table).locations.keys() - ends - left:
                problem = f"{', '.join(sorted(lost))} is lost where write {trial.fuse} fails"
            elif any(last in outcome.result for last in _NEVER_RAISED):
                problem = f"counters, journal and doorbell must not fail a call: {outcome.result}"
            elif (wrong := self._unmended(outcome.written.table)) is not None:
                problem = f"where write {trial.fuse} fails, fsck leaves behind: {wrong}"
            if problem is not None and whole.problem is None:
                self._tried[trial.table, trial.call] = Tried(
                    whole.result, whole.table, problem, whole.new_messages, whole.new_leases
                )

    def _unmended(self, table: bytes) -> str | None:
        if table not in self._damage:
            mended, reported = self._bench.checked(table, repair=True)
            gone = view(table).locations.keys() - view(mended).locations.keys()
            # How many of those in ready were counted is unknown: others push without counting.
            problem = doubled(view(mended)) or ("; ".join(reported) or None)
            self._damage[table] = f"{', '.join(sorted(gone))} gone" if gone else problem
        return self._damage[table]

    def retrace(self, path: Sequence[bytes]) -> Breach:
        """Go a way once more, from the first state through those of `path`, to a breach."""
        state, story = self.begin(), Story()
        for name in [*path[1:], None]:
            for trial in self.following([(b"", state)]):
                if name is None and trial.after.problem is not None:
                    problem = story.named(trial.after.problem)
                    story.tell(trial)
                    return Breach(problem, story.lines)
                if name is not None and digest(trial.after.state) == name:
                    story.tell(trial)
                    state = trial.after.state
                    break
            else:
                raise AssertionError("the way to a breach was not found again")
        raise AssertionError("no breach at the end of the way")
