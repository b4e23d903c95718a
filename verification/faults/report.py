"""What a run came to: for people, and as a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verification.faults.playing import Played
from verification.faults.repeating import flows_of
from verification.faults.row import ALWAYS

__all__ = ["print_flows", "print_row", "print_table", "report_of"]

_TOTALS = (
    "attempts",
    "acked",
    "handled",
    *ALWAYS,
    "taken",
    "recovered",
    "duplicates",
    "stale_acks",
)


def report_of(
    played: Sequence[Played], seed: int, seconds: float, rtt_ms: float = 0.0
) -> dict[str, Any]:
    """Write the document: totals over all rows, and the rows.

    `lost` and its like do not count what a fault takes away by its nature; that is `taken`, and each such row says why.
    """
    rows = [each.document() for each in played]
    return {
        **{name: sum(row[name] for row in rows) for name in _TOTALS},
        "flows": flows_of(played),
        "passed": all(row["passed"] or row["reason"] for row in rows) and bool(rows),
        "not_played": [row["fault"] for row in rows if row["reason"]],
        "seed": seed,
        "seconds": round(seconds, 1),
        "rtt_ms": rtt_ms,
        "rows": rows,
    }


def print_row(played: Played) -> None:
    """Say how one row went."""
    document = played.document()
    word = "----" if played.reason else "ok  " if played.passed else "FAIL"
    print(
        f"{word} {played.row.name:5} {played.row.fault}"
        + (f": not played, {played.reason}" if played.reason else f" ({played.seconds:.0f} s)"),
        flush=True,
    )
    if played.reason:
        return
    losses = ", ".join(f"{kind.replace('_', ' ')} {document[kind]}" for kind in ALWAYS)
    print(f"           {document['acked']:,} sent, {losses}, duplicates {document['duplicates']}")
    for bound in document["bound"]:
        print(f"           bound {bound}")
    print(f"           measured {_figures(document['figures'])}", flush=True)
    for account, why in played.left_out.items():
        print(f"           not compared: {account}, {why}")
    for problem in played.problems:
        print(f"           PROBLEM {problem}", flush=True)


def print_flows(flows: Mapping[str, int]) -> None:
    """Say how many flows have ended until now."""
    print(
        f"           until now {', '.join(f'{kind} {n:,}' for kind, n in flows.items())}",
        flush=True,
    )


def _figures(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in figures.items() if name not in _TOTALS)


def print_table(report: dict[str, Any]) -> None:
    """Say how the run went."""
    print(
        f"\n{'fault':6} {'':4} {'sent':>9} {'lost':>5} {'dupl.':>6} {'stale':>6} {'p99 s':>6} {'s':>5}"
    )
    for row in report["rows"]:
        word = "----" if row["reason"] else "ok" if row["passed"] else "FAIL"
        p99 = row["figures"].get("redelivery_p99_s", "")
        print(
            f"{row['fault']:6} {word:4} {row['acked']:>9,} {row['lost']:>5} {row['duplicates']:>6} "
            f"{row['stale_acks']:>6} {p99:>6} {row['seconds']:>5.0f}"
        )
    totals = ", ".join(f"{name.replace('_', ' ')} {report[name]:,}" for name in _TOTALS)
    print(
        f"\n{totals}\nseed {report['seed']}, {report['seconds']:.0f} s, servers {report['rtt_ms']:g} ms away"
    )
    if any(report["flows"].values()):
        print(", ".join(f"{kind} {number:,}" for kind, number in report["flows"].items()))
    if report["not_played"]:
        print(f"not played here: {', '.join(report['not_played'])}")
    print("passed" if report["passed"] else "FAILED", flush=True)
