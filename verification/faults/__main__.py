"""The command line of the fault suite: rows, mutations, or a soak. Exit code 1 where anything did not hold."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from pathlib import Path

from verification.faults.mutating import catch_all
from verification.faults.mutations import MUTATIONS
from verification.faults.playing import Played, play
from verification.faults.repeating import flows_of, has_flows, until_each
from verification.faults.report import print_flows, print_row, print_table, report_of
from verification.faults.row import Row
from verification.faults.rows import ROWS, chosen
from verification.faults.server import FaultServer
from verification.faults.soak import print_soak, soak

#: How long a soak lasts by default.
_SOAK_S = 600.0
#: Beyond that time limits end calls, and nothing but that would be seen.
_FARTHEST_MS = 1000


def main() -> int:
    """Run the command line; returns the exit code."""
    given = _arguments()
    # A stopped run leaves no process behind.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if given.list:
        for row in ROWS.values():
            print(f"{row.name:5} {'commit' if row.commit else '':6} {row.fault}")
        return 0
    FaultServer.rtt_ms = given.rtt
    print(f"seed {given.seed}", flush=True)
    if given.mutation or given.mutations:
        names = [given.mutation] if given.mutation else list(MUTATIONS)
        return 0 if catch_all(names, seed=given.seed, seconds=given.seconds) else 1
    if given.soak:
        report = soak(given.seconds or _SOAK_S, given.seed)
        print_soak(report)
    else:
        report = _play(given)
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["passed"] else 1


def _play(given: argparse.Namespace) -> dict[str, object]:
    begun, played = time.monotonic(), list[Played]()
    commit = given.faults == "commit"

    def play_row(row: Row, flows: int) -> Played:
        return play(
            row,
            seed=given.seed + sum(each.row.name == row.name for each in played),
            seconds=given.seconds or (row.commit_s if commit else 0.0),
            patience=given.patience,
            small=commit or given.small,
            keep=given.keep,
            flows=flows,
        )

    for each in until_each(chosen(given.faults), given.each, play_row):
        played.append(each)
        print_row(each)
        if given.each and has_flows(each.row):
            print_flows(flows_of(played))
    report = report_of(played, given.seed, time.monotonic() - begun, given.rtt)
    if given.each and any(has_flows(each.row) for each in played):
        report["passed"] = report["passed"] and min(flows_of(played).values()) >= given.each
    print_table(report)
    return report


def _distance(text: str) -> float:
    rtt_ms = float(text)
    if not 0 <= rtt_ms <= _FARTHEST_MS:
        raise argparse.ArgumentTypeError(f"{text} is not within 0 to {_FARTHEST_MS} ms")
    return rtt_ms


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m verification.faults", description=__doc__)
    add = parser.add_argument
    add("--faults", default="commit", help="F1,C5… | commit | all | composition | flow | keys")
    add("--list", action="store_true", help="list the rows")
    add("--mutation", choices=list(MUTATIONS), help="plant a defect; 0 where a row catches it")
    add("--mutations", action="store_true", help="plant each of them")
    add("--soak", action="store_true", help="watch memory under load")
    add("--seconds", type=float, default=0.0, help="of each fault, or of the soak; 0: its own")
    add(
        "--each",
        type=int,
        default=0,
        metavar="N",
        help="until N flows of each kind ended, N messages of G73, or N kills of G70 and G72",
    )
    add("--seed", type=int, default=random.randrange(10**6))
    add("--json", type=Path, help="write the report here")
    add("--rtt", type=_distance, default=0.0, metavar="MS", help="put all servers so far away")
    add("--small", action="store_true", help="as many processes as for every commit")
    add("--patience", type=float, default=1.0, help="stretches bounds on times")
    add("--keep", action="store_true", help="keep the files of rows that fail")
    given = parser.parse_args()
    try:
        chosen(given.faults)
    except LookupError as error:
        parser.error(f"--faults: {error.args[0]}")
    return given


if __name__ == "__main__":
    sys.exit(main())
