"""The result of a demo: one value for the table, for JSON and for the exit code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from qworker.demo.account import Account
from qworker.demo.results import Index

__all__ = ["DemoResult"]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of a run. `stopped`: why it ended early, or ''. `seconds`: from the first send to the last settle."""

    account: Account
    index: Index
    files: int
    retried: int
    workers: int
    workers_killed: int
    seconds: float
    engine: str
    stopped: str = ""

    @property
    def messages_per_s(self) -> float:
        """Messages handled or dead, per second."""
        return (self.account.handled + self.account.dead) / max(self.seconds, 0.001)

    @property
    def exit_code(self) -> int:
        """0 if every message is accounted for, else 1."""
        return 1 if self.account.lost or self.stopped else 0

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield name, number and explanation of each line of the table."""
        account = self.account
        yield "sent", f"{account.sent:,}", "to index a file, to check it, and the summary of each"
        yield "handled", f"{account.handled:,}", ""
        yield "dead", f"{account.dead:,}", ", ".join(self._reasons())
        if account.waiting:
            yield "waiting", f"{account.waiting:,}", "not handled when it was stopped"
        yield "retried", f"{self.retried:,}", "failures that were tried again"
        yield "redelivered", f"{account.redelivered:,}", self._redelivered()
        cause = "handled twice because of the kill: at least once" if account.duplicates else ""
        yield "duplicates", f"{account.duplicates:,}", cause
        yield "lost", f"{len(account.lost):,}", "sent, and neither handled nor dead"
        yield "workers killed", f"{self.workers_killed}", f"with SIGKILL, of {self.workers}"
        yield "seconds", f"{self.seconds:.1f}", ""
        yield "messages/s", f"{self.messages_per_s:,.0f}", "two of three read and parse a file"

    def _reasons(self) -> Iterator[str]:
        for reason, number in self.account.dead_by_reason.items():
            errors = ", ".join(self.account.errors_by_reason.get(reason, ()))
            yield f"{number:,} {reason}" + (f" ({errors})" if errors else "")

    def _redelivered(self) -> str:
        if self.workers_killed:
            return "held by the killed worker, and handled afterwards"
        return "too few messages to kill a worker in the middle of one"

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        account = self.account
        return {
            "sent": account.sent,
            "handled": account.handled,
            "dead": account.dead,
            "dead_by_reason": dict(account.dead_by_reason),
            "waiting": account.waiting,
            "lost": len(account.lost),
            "lost_keys": sorted(account.lost)[:20],
            "retried": self.retried,
            "redelivered": account.redelivered,
            "duplicates": account.duplicates,
            "workers": self.workers,
            "workers_killed": self.workers_killed,
            "seconds": round(self.seconds, 3),
            "messages_per_s": round(self.messages_per_s, 1),
            "files": self.files,
            "indexed": self.index.files,
            "lines": self.index.lines,
            "symbols": self.index.symbols,
            "engine": self.engine,
            "stopped": self.stopped,
        }
