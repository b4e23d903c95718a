"""Runs as tables and texts, and as documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from qworker.cli.framework.output import Block, Fields, Heading, Hint, Line, Note, Table
from qworker.cli.framework.terminal import Cell, Column

if TYPE_CHECKING:
    from qworker.client.calls import CallGroup
    from qworker.client.inspect.runs import RunStatus, RunStep
    from qworker.client.queue import Queue

__all__ = ["gathered", "run_document", "run_listing", "run_text", "step_document"]

_TONES: Final = {"dead": "bad", "lost": "bad", "running": "good"}


def run_document(run: RunStatus) -> dict[str, Any]:
    return {
        "id": run.id,
        "queue": run.queue,
        "workflow": run.workflow or None,
        "state": run.state,
        "started_ms": run.started_ms,
        "since_ms": run.since_ms,
        "due_ms": run.due_ms,
        "waits_for": run.waits_for or None,
    }


def step_document(step: RunStep) -> dict[str, Any]:
    return {
        "name": step.name,
        "at_ms": step.at_ms,
        "value": json.loads(step.value) if step.value else None,
        "position": step.position,
        "timed_out": step.name.startswith("!") and not (step.value or step.closed),
        "closed": step.closed or None,
        "lasted_ms": step.lasted_ms or None,
    }


def run_listing(runs: list[RunStatus], without: str) -> Iterator[str | Block]:
    """A table of runs; `without` any, this note."""
    from qworker.formats import ago

    if not runs:
        yield Note(without)
        return
    columns = [Column("QUEUE"), Column("ID", wide=True), Column("WORKFLOW"), Column("STATE")]
    columns += [Column("STARTED"), Column("SINCE"), Column("WAITS FOR", wide=True)]
    yield Table(
        columns,
        [
            [
                run.queue,
                run.id,
                run.workflow,
                Cell(run.state, _TONES.get(run.state, "")),
                ago(run.started_ms, run.now_ms) if run.started_ms else "",
                ago(run.since_ms, run.now_ms) if run.since_ms else "",
                _what(run),
            ]
            for run in runs
        ],
    )


def gathered(opened: Queue, run: RunStatus) -> CallGroup | None:
    """The group of calls that a run waits for."""
    from qworker.client.inspect.runs import is_gather
    from qworker.wire.calls import gather_id

    if run.state != "waiting" or not is_gather(run.waits_for):
        return None
    return opened.call_group(gather_id(run.id, f"!{run.waits_for}"))


def run_text(
    run: RunStatus, steps: list[RunStep], calls: CallGroup | None
) -> Iterator[str | Block]:
    from qworker.cli.message.bodies import body_line
    from qworker.client.inspect.runs import is_gather
    from qworker.formats import moment_after, span, word

    fields: dict[str, Cell | str] = {"run": run.id, "queue": run.queue}
    if run.workflow:
        fields["workflow"] = run.workflow
    fields["state"] = Cell(run.state, _TONES.get(run.state, ""))
    for name, at_ms in (("started", run.started_ms), ("since", run.since_ms)):
        if at_ms:
            fields[name] = moment_after(at_ms, run.now_ms)
    if what := _what(run):
        fields["waits for"] = what
    if calls is not None:
        dead = f", {len(calls.dead):,} dead" if calls.dead else ""
        tone = "bad" if calls.state == "blocked" else ""
        fields["calls"] = Cell(f"{calls.size:,}, waits for {calls.left:,}{dead}", tone)
    yield Fields(fields)
    yield Heading("STEPS")
    if not steps:
        yield "none is recorded"
    for step in steps:
        at = moment_after(step.at_ms, run.now_ms) if step.at_ms else "-"
        shown = f"({step.closed})" if step.closed else body_line(step.value)
        if step.name.startswith("!") and not (step.value or step.closed):
            shown = "(not given in time)"
        if step.name.startswith("!") and is_gather(step.name):
            yield f"{at}  {step.name[1:]}  (its calls have ended)"
        elif step.position is not None:
            yield f"{at}  each {step.name[1:]}: {step.progress}"
        else:
            took = f"  (took {span(step.lasted_ms / 1000)})" if step.lasted_ms else ""
            yield f"{at}  {step.name}  {shown}{took}"
    name = word(run.id)
    if run.state == "dead":
        yield Line()
        yield Hint(
            "why it is dead      ", f"qworker dead show {run.queue.partition('/')[0]} {name}"
        )
        yield Hint("after the fix       ", f"qworker workflow redrive {name}")
    elif run.state == "lost":
        yield Line()
        yield Hint("its message is gone ", f"qworker fsck {run.queue.partition('/')[0]} --repair")
    elif calls is not None:
        yield Line()
        yield Hint("what it waits for   ", f"qworker calls show {word(calls.id)}")
    elif run.state == "waiting" and not is_gather(run.waits_for):
        yield Line()
        yield Hint("to let it continue  ", f"qworker workflow signal {name} {run.waits_for} JSON")
    elif run.ended:
        yield Line()
        yield Hint(
            "what it came to     ", f"qworker result show {run.queue.partition('/')[0]} {name}"
        )


def _what(run: RunStatus) -> str:
    """What a run waits for, in words."""
    from qworker.client.inspect.runs import is_gather
    from qworker.formats import moment_after

    if run.state == "waiting":
        kind = "calls of" if is_gather(run.waits_for) else "signal"
        until = f" until {moment_after(run.due_ms, run.now_ms)}" if run.due_ms else ""
        return f"{kind} {run.waits_for}{until}"
    return moment_after(run.due_ms, run.now_ms) if run.due_ms else ""
