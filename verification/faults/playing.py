"""Play one row: stage, load, fault, drain, check of the store, account, bounds."""

from __future__ import annotations

import math
import random
import shutil
import tempfile
import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qworker.fsck.check import check
from qworker.fsck.damage import Damage
from verification.faults.accounts import agreement_of
from verification.faults.checker import Account, account_of
from verification.faults.history import events_of
from verification.faults.processes import NAMESPACE
from verification.faults.row import ALWAYS, Row, at_least
from verification.faults.stage import Stage

__all__ = ["Played", "asking", "play"]

#: Figure → counter of the queues.
_STATS = {
    "stale_acks": "stale",
    "timeouts": "timeouts",
    "server_acked": "acked",
    "gaps": "gaps",
    "dead": "dead",
    "sent_by_server": "sent",
}


@dataclass
class Played:
    """The result of a row. `reason`: why it was not played; `problems`: in words; none means passed.

    `unseen`: of the workers' metrics and log, why they do not tell all. `left_out`: accounts that were not compared.
    """

    row: Row
    seed: int
    reason: str = ""
    seconds: float = 0.0
    account: Account = field(default_factory=Account)
    figures: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether it was played and everything held."""
        return not self.reason and not self.problems

    def document(self) -> dict[str, Any]:
        """Write it for programs."""
        account = self.account
        bounds = [str(bound) for bound in self.row.bounds]
        named = {bound.figure for bound in self.row.bounds}
        named |= {bound.limit for bound in self.row.bounds if isinstance(bound.limit, str)}
        return {
            "fault": self.row.name,
            "what": self.row.fault,
            "passed": self.passed,
            "reason": self.reason,
            "problems": self.problems,
            "attempts": account.attempts,
            "acked": account.acked,
            "handled": account.handled,
            **{kind: getattr(account, kind) for kind in ALWAYS},
            "taken": int(self.figures.get("taken", 0)),
            "takes": self.row.takes,
            "undone": int(self.figures.get("undone", 0)),
            "undoes": self.row.undoes,
            "recovered": account.recovered,
            "duplicates": account.duplicates,
            "stale_acks": int(self.figures.get("stale_acks", 0)),
            "bound": bounds,
            "measured": {name: self.figures[name] for name in sorted(named & self.figures.keys())},
            "figures": dict(sorted(self.figures.items())),
            "left_out": self.left_out,
            "examples": account.examples,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
        }


def play(
    row: Row,
    *,
    seed: int,
    seconds: float = 0.0,
    mutation: str = "",
    patience: float = 1.0,
    small: bool = False,
    keep: bool = False,
    flows: int = 0,
    warm: bool = False,
) -> Played:
    """Play a row. `seconds` of fault, 0 for the row's own; `patience` stretches bounds on times.

    `flows`: of each kind, at least so many are started under the fault, however long that takes; or as much of what the
    row names in `each`, which it is then held to.

    `small`: with one child per worker and one producer, which start sooner. `warm`: forked from a process that has
    imported already; not with a mutation, which is planted before that. `keep`: histories and logs of a row that did
    not pass stay where the problem says.
    """
    row = asking(row, flows)
    played = Played(row, seed, reason=row.needs())
    if played.reason:
        return played
    begun = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="qworker-faults-"))
    try:
        with ExitStack() as stack:
            server = stack.enter_context(row.server(stack, directory))
            stage = Stage(
                server,
                directory,
                row.load.smaller() if small else row.load,
                seconds=seconds or row.seconds,
                chance=random.Random(f"{seed} {row.name}"),
                mutation=mutation,
                flows=flows,
                each=row.each,
                warm=warm and not mutation,
            )
            with stage:
                _play(row, stage, played, patience)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        played.problems.append(f"no verdict: {type(error).__name__}: {error} ({where})")
    played.seconds = time.monotonic() - begun
    if keep and played.problems:
        played.problems.append(f"histories and logs are in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return played


def asking(row: Row, number: int) -> Row:
    """Hold a row to so much of what it names in `each`, and to all ordered groups that this is sent to."""
    if not row.each or not number:
        return row
    sending = row.load.sending
    bounds = [at_least(row.each, number)]
    if sending.ordered_groups:
        bounds.append(
            at_least("ordered_groups", min(sending.ordered_groups, number // sending.chunk))
        )
    return replace(row, bounds=(*row.bounds, *bounds))


def _play(row: Row, stage: Stage, played: Played, patience: float) -> None:
    row.before(stage)
    stage.begin()
    row.course(stage)
    for proxy in stage.proxies.values():
        proxy.heal()
    stage.stop_producers()
    try:
        stage.measured["drain_s"] = stage.drain()
    except TimeoutError as error:
        # No verdict on what is still stored; what was damaged until now is damage anyway.
        played.problems.append(f"no verdict: {error}")
    stage.take_metrics()
    stage.stop_consumers()
    stage.take_lines()
    played.unseen = stage.unseen
    _check_store(row, stage, played)
    _take_figures(stage, played)
    played.figures.update(row.figures(stage.history))
    _forgive(row, played, named=bool(stage.gone))
    _judge(row, played, patience)
    # Not the work of a fault: a mistake in a supervisor, or in the program that watches it here.
    for line in stage.logged("supervision_failed"):
        if "exception" in line:
            played.problems.append(f"a supervisor has failed: {line['exception'].splitlines()[-1]}")
            break


def _check_store(row: Row, stage: Stage, played: Played) -> None:
    """Run `fsck` over what is left; a row that makes repairs needful has them made, and counted, first."""
    client = stage.app.client
    if row.mends:
        mended = stage.repair()
        stage.measured["mended"] = len(mended)
        for damage in mended:
            if damage.kind.value not in row.mends:
                played.problems.append(f"fsck: {_text(damage)}")
    findings = list(check(client, NAMESPACE))
    stage.measured["fsck"] = len(findings)
    for finding in findings[:5]:
        played.problems.append(f"fsck: {_text(finding)}")


def _text(finding: Damage | str) -> str:
    if isinstance(finding, str):
        return finding
    return f"{finding.queue} {finding.kind.value} {finding.where}: {finding.problem}"


def _take_figures(stage: Stage, played: Played) -> None:
    account = account_of(
        lambda: events_of(stage.history),
        dead=stage.dead_keys(),
        gone=stage.gone,
        losses=stage.losses,
    )
    played.account = account
    figures = played.figures = dict(stage.measured)
    seen = [stage.queue(name).inspect().stats for name in stage.in_use]
    for figure, stat in _STATS.items():
        figures[figure] = sum(stats.get(stat, 0) for stats in seen)
    for kind in (
        *ALWAYS,
        "attempts",
        "acked",
        "duplicates",
        "unexplained",
        "uncounted",
        "recovered",
        "latest_receives",
        "finished",
        "maybe_cancelled",
    ):
        figures[kind] = getattr(account, kind)
    figures["sent_per_s"] = round(account.acked / max(figures["load_s"], 0.1))
    waits = account.redelivery_s
    figures["redeliveries"] = len(waits)
    figures["redelivery_p99_s"] = _p99(waits)
    if stage.gaps:
        stage.note_gaps()
    figures["gaps_seen"] = len(stage.gaps)
    figures["redelivery_outside_gaps_p99_s"] = _p99(account.waits_s([*stage.gaps]))
    figures["held_again"] = len(account.held_s)
    figures["held_longest_s"] = round(max(account.held_s, default=0.0), 2)
    ended = stage.logged("child_ended")
    figures["killed_running"] = sum(
        child.get("running", 0) for child in ended if child["reason"] not in ("stopped", "recycled")
    )


def _p99(sorted_s: list[float]) -> float:
    return round(sorted_s[math.ceil(0.99 * len(sorted_s)) - 1], 2) if sorted_s else 0.0


def _forgive(row: Row, played: Played, *, named: bool) -> None:
    """Count apart what the fault takes away by its nature; the row's bounds say how much of it there may be.

    `named`: the course knows which messages it took, so nothing is forgiven beside these.
    """
    account, figures = played.account, played.figures
    if row.takes:
        figures["taken"] = account.taken if named else account.lost
        account = account if named else replace(account, lost=0)
    if row.undoes:
        figures["undone"] = max(account.acked_twice, account.started_after_ack)
        account = replace(account, acked_twice=0, started_after_ack=0)
    played.account = account


def _judge(row: Row, played: Played, patience: float) -> None:
    account, figures = played.account, played.figures
    for kind in ALWAYS:
        if number := getattr(account, kind):
            examples = ", ".join(account.examples.get(kind, [])[:3])
            played.problems.append(f"{number} {kind.replace('_', ' ')} ({examples})")
    agreement = agreement_of(row, figures, played.unseen)
    played.left_out = agreement.left_out
    played.problems += agreement.problems
    for bound in row.bounds:
        if not bound.holds(figures, patience=patience):
            measured = figures.get(bound.figure, "not measured")
            limit = f" ({figures.get(bound.limit, 0):g})" if isinstance(bound.limit, str) else ""
            played.problems.append(f"{bound}{limit}, but {measured}")
