"""Drive the real scripts through every interleaving of small worlds; exit code 0: all that was promised held.

    python -m verification.interleavings                           # every world, in two processes
    python -m verification.interleavings --worlds lanes,receipts   # some
    python -m verification.interleavings --mutate all              # broken products: each must be found
    python -m verification.interleavings --list

Prints for each world the distinct states, the steps between them, and the calls that the server was asked for. A broken
promise is reported with one of the shortest ways that lead to it, a step a line, and reproduced before it is reported.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verification.interleavings.mutations import MUTATIONS, made
from verification.interleavings.search import Found, search
from verification.interleavings.worlds import ENDLESS, WORLDS, world_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Search; returns the exit code."""
    options = _parse(arguments)
    if options.list:
        for name in WORLDS:
            print(f"{name:14} {world_of(name).about}")
        for name, mutation in MUTATIONS.items():
            print(f"--mutate {name:22} {mutation.about}")
        return 0
    run = _mutated if options.mutate else _whole
    document, code = run(options)
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    return code


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m verification.interleavings")
    parser.add_argument("--worlds", type=_names(WORLDS), default=list(WORLDS), metavar="A,B")
    parser.add_argument("--small", action="store_true", help="the smallest form of each world")
    parser.add_argument("--seconds", type=float, default=540.0, help="for all worlds together")
    parser.add_argument("--jobs", type=int, default=2, help="processes, each with a server")
    parser.add_argument("--engine", choices=["valkey", "redis"], default="valkey")
    parser.add_argument("--mutate", type=_names(MUTATIONS), metavar="A,B|all")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--list", action="store_true", help="name worlds and mutations")
    return parser.parse_args(arguments)


def _names(known: dict[str, Any]) -> Any:
    def parse(text: str) -> list[str]:
        names = list(known) if text == "all" else text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse


def _whole(options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """The worlds as they are: nothing may be found, and all but the endless ones must end."""
    started = time.monotonic()
    all_found: list[Found] = []
    print(
        f"{'world':12} {'states':>9} {'queues':>8} {'steps':>10} {'calls':>8} {'depth':>5} {'s':>6}"
    )
    for name in sorted(options.worlds, key=lambda world: world in ENDLESS):
        left_s = options.seconds - (time.monotonic() - started)
        match = search(
            (made, (name, options.small, "")),
            jobs=options.jobs,
            engine=options.engine,
            most_s=max(min(left_s, ENDLESS.get(name, left_s)), 0.0),
        )
        all_found.append(match)
        _print_row(match)
        _print_breach(match)
    states, steps = (
        sum(getattr(result, key) for result in all_found) for key in ("states", "transitions")
    )
    broken = [result for result in all_found if result.breach]
    open_ended = [
        e.world for e in all_found if not e.complete and not e.breach and e.world not in ENDLESS
    ]
    seconds = round(time.monotonic() - started, 1)
    print(
        f"{states:,} distinct states, {steps:,} steps, {seconds} s, {len(broken)} promises broken"
    )
    if open_ended:
        print(f"not seen to the end in the time given: {', '.join(open_ended)}")
    document = {
        "states": states,
        "transitions": steps,
        "seconds": seconds,
        "violations": len(broken),
        "worlds": [asdict(result) for result in all_found],
    }
    return document, 1 if broken or open_ended else 0


def _mutated(options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Broken products: each must be found."""
    rows = []
    for name in options.mutate:
        mutation = MUTATIONS[name]
        match = search(
            (made, (mutation.world, True, name)), engine=options.engine, most_s=options.seconds
        )
        print(f"{name}: {mutation.about}")
        if match.breach:
            print(f"  found in {match.world} after {match.states:,} states, {match.seconds} s")
            _print_breach(match)
        else:
            print(f"  NOT FOUND in {match.states:,} states of {match.world}")
        rows.append({"mutation": name, **asdict(match)})
    missed = [row["mutation"] for row in rows if row["breach"] is None]
    print(f"{len(rows) - len(missed)} of {len(rows)} mutations found")
    return {"mutations": rows, "missed": missed}, 1 if missed else 0


def _print_row(result: Found) -> None:
    state = "" if result.complete else "broken" if result.breach else "not to its end"
    print(
        f"{result.world:12} {result.states:9,} {result.tables:8,} {result.transitions:10,} {result.calls:8,} "
        f"{result.depth:5} {result.seconds:6} {state}",
        flush=True,
    )


def _print_breach(result: Found) -> None:
    if result.breach is None:
        return
    print(f"  BROKEN: {result.breach.problem}")
    for number, line in enumerate(result.breach.steps, 1):
        print(f"  {number:3}. {line}")


if __name__ == "__main__":
    sys.exit(main())
