"""Texts of the pages of the screen: a queue, a worker, a handler, a dead letter, a finding; and the help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qworker.cli.dead.show import dead_letter_text
from qworker.cli.framework.output import Block, Fields, Heading, Line, Table
from qworker.cli.framework.terminal import Cell, Column
from qworker.cli.queue.tables import queue_text
from qworker.cli.top.full.glyphs import Glyphs, sparkline
from qworker.cli.worker.group import last_seen, stack_lines
from qworker.client.dead.fingerprint import fingerprint
from qworker.client.inspect.peek import Inspection
from qworker.errors import BrokenQueueError
from qworker.formats import COMMAND, count, moment_after, rate, size, span

if TYPE_CHECKING:
    from qworker.cli.top.full.view import Key, View
    from qworker.client.manage.limit_load import LimitLoad
    from qworker.client.message import DeadLetter
    from qworker.client.namespace.workers import Running, Worker
    from qworker.health.finding import Finding
    from qworker.monitor.sample import Sample

__all__ = [
    "finding_page",
    "handler_page",
    "help_page",
    "letter_page",
    "limit_page",
    "queue_page",
    "worker_page",
]

_WIDE: Final = 40
_CHILDREN: Final = (
    Column("PID", number=True),
    Column("STATE"),
    Column("RUNNING", number=True),
    Column("DONE", number=True),
    Column("FAILED", number=True),
    Column("MEMORY", number=True),
)


def queue_page(sample: Sample, name: str, glyphs: Glyphs) -> Iterator[str | Block]:
    """Write a queue: its last hour, and all that `qworker queue show` says."""
    queue = sample.queues.get(name)
    if queue is None:
        yield Line(
            "this queue no longer exists: its last message was taken, or it was removed",
            "warn",
        )
        return
    if not isinstance(queue, Inspection):
        yield Line(str(queue), "bad")
        if isinstance(queue, BrokenQueueError):
            yield Line(f"nothing was changed: qworker fsck {name} says more")
        else:
            yield Line("it is read again every few seconds")
        return
    flow = sample.flow(name)
    figures: dict[str, Cell | str] = {}
    for label, series, now in (
        ("ready", sample.ready, count(queue.ready)),
        ("done/s", sample.done, rate(flow.done) if flow is not None else "-"),
    ):
        drawn = sparkline(series.get(name), _WIDE, glyphs)
        figures[label] = Cell(f"{drawn}  {now}") if drawn.strip() else f"{now} (no history yet)"
    yield Line("LAST HOUR")
    yield Fields(figures)
    yield Line()
    yield from queue_text(queue, sample.rates(name), sample.workers)


def worker_page(
    worker: Worker, now_ms: int, stacks: Sequence[Mapping[str, Any]] | str
) -> Iterator[str | Block]:
    """Write a worker: what it is, its processes, and the stacks of its handlers, or why they are not known."""
    described = worker.described
    yield Fields(
        {
            "worker": worker.name,
            "seen": last_seen(worker),
            "host": f"{described.host}, pid {described.pid}",
            "app": described.app or "-",
            "started": moment_after(described.started_ms, now_ms) if described.started_ms else "-",
            "queues": ", ".join(described.queues) or "-",
            "handlers": f"{count(len(worker.running))} running, at most {count(described.concurrency)}"
            if described.concurrency
            else f"{count(len(worker.running))} running",
            "done": f"{rate(described.handled_per_s)} per second, {count(worker.failed)} failed",
            "memory": size(worker.rss_bytes),
        }
    )
    yield Heading("PROCESSES")
    yield Table(
        _CHILDREN,
        [
            [
                str(child.pid),
                child.state,
                count(len(child.running)),
                count(child.handled),
                Cell(count(child.failed), "warn" if child.failed else ""),
                size(child.rss_bytes),
            ]
            for child in described.children
        ],
        "none",
    )
    yield Heading("STACKS OF ITS HANDLERS, THE MOST RECENT CALL FIRST")
    if isinstance(stacks, str):
        yield Line(stacks, "dim")
    elif not stacks:
        yield Line("no handler is running", "dim")
    else:
        yield from stack_lines({worker.name: stacks})


def handler_page(
    handler: Running, stacks: Sequence[Mapping[str, Any]] | str
) -> Iterator[str | Block]:
    """Write a running handler and its stack, or why that is not known."""
    yield Fields(
        {
            "task": handler.task or "-",
            "running": span(handler.seconds),
            "worker": handler.worker,
            "pid": str(handler.pid),
            "receipt": handler.message_id,
        }
    )
    yield Heading("STACK, THE MOST RECENT CALL FIRST")
    if isinstance(stacks, str):
        yield Line(stacks, "dim")
        return
    for found in stacks:
        if found.get("pid") == handler.pid and found.get("id") == handler.message_id:
            yield from (found.get("stack") or "its stack cannot be read").splitlines()
            return
    yield Line("it has ended, or is not among the 50 oldest of its worker", "dim")


def letter_page(queue: str, letter: DeadLetter, now_ms: int) -> Iterator[str | Block]:
    """Write a dead letter as `qworker dead show` does, with the fingerprint of its kind."""
    yield from dead_letter_text(queue, letter, now_ms)
    kind = f"qworker dead redrive {queue} --fingerprint {fingerprint(letter)}"
    yield f"all of its kind {kind}"


def finding_page(finding: Finding) -> Iterator[str | Block]:
    """Write a finding of the doctor, and what to do about it."""
    tone = {"problem": "bad", "warning": "warn", "ok": "good"}[finding.status.value]
    yield Fields({"check": finding.check, "status": Cell(finding.status.value, tone)})
    yield Heading("FOUND")
    yield finding.text
    if finding.fix:
        yield Heading("WHAT TO DO")
        yield finding.fix
        for command in COMMAND.findall(finding.fix):
            yield f"    {command}"


def limit_page(queue: str, load: LimitLoad, now_ms: int) -> Iterator[str | Block]:
    """Write a limit, what it holds for, and what shows and changes it."""
    yield Fields(
        {
            "queue": queue,
            "limit": load.name,
            "is": load.limit.text,
            "groups": f"{count(load.groups)}, {count(load.full)} with as many running as may",
            "waiting": count(load.waiting),
            "running": count(load.running),
            "waits for": load.waits_for(now_ms) or "its turn",
        }
    )
    yield Heading("WHAT TO DO")
    yield f"the groups under it   qworker limit groups {queue}"
    yield f"another limit         qworker limit set {queue} '{load.name}' --help"


def help_page(
    views: Sequence[View[Any] | type[View[Any]]], everywhere: Sequence[Key]
) -> Iterator[str | Block]:
    """Write all keys: those of every table, then those of each."""
    yield Line("EVERYWHERE")
    yield Fields({key.name: key.help for key in everywhere})
    for view in views:
        yield Heading(view.title.upper())
        yield Fields({key.name: key.help for key in view.keys})
    yield Heading("WHAT IT SHOWS")
    yield from (
        "Rates are per second, over a few seconds. Sparklines show the last hour, since the screen was opened.",
        "Visible rows are read at every interval. Reading all queues takes the server less than",
        "0.5 % of its time. Every change is a command of the command line, and is written to the audit trail.",
    )
