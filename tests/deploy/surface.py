"""What deploy/ may name, read from the code: exported metrics, commands with their flags, events of the log."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import click
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as Family

import qworker
from qworker.cli.main import cli
from qworker.consumer.manifest import Manifest, ManifestTask
from qworker.consumer.options import RunOptions
from qworker.consumer.supervisor.metrics import ChildrenCollector
from qworker.consumer.supervisor.supervisor import Supervisor
from qworker.daemon.queue_metrics import QueueCollector
from qworker.daemon.reaper_metrics import ReaperMetrics
from qworker.daemon.tick import Tick
from qworker.engine.groups import LargeGroup
from qworker.engine.inspect import Inspection
from qworker.store.connections import ConnectionFactory
from qworker.telemetry.options import LogOptions
from qworker.wire.keys import QueueKeys
from tests.trees import nodes

__all__ = ["COMMANDS", "FLAGS", "METRICS", "Metric", "events"]

CODE = Path(qworker.__file__).parent
#: Example queues, and the task of each.
TASKS = {"emails": "send", "events": "load"}


@dataclass(frozen=True)
class Metric:
    """One exported metric: its labels with example values, and who tells its value.

    `truth`: kept in Redis and exported alike by every reaper, so a query must take `max by (queue)`.
    """

    kind: Literal["counter", "gauge", "histogram"]
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    truth: bool = False


# -- metrics -----------------------------------------------------------------------------------


def reasons() -> Iterator[str]:
    """Find the reasons of dead letters that the code writes by itself, in Lua and in Python."""
    for path in CODE.rglob("*.lua"):
        yield from re.findall(r"\bbury\(\w+, '(\w+)'", path.read_text())
    for path in CODE.rglob("*.py"):
        yield from re.findall(r'BURIED, reason="(\w+)"', path.read_text())


def queue_families() -> Iterator[Family]:
    """What a reaper exports of two queues; their figures are made up, as this asks no server."""
    stats = {f"dead:{reason}": 1 for reason in reasons()}
    figures = partial(
        Inspection,
        now_ms=1,
        ready_by_priority=(1,) * 10,
        suspect=0,
        delayed=1,
        leases=1,
        dead=1,
        oldest_ready_ms=0,
        next_due_ms=None,
        next_deadline_ms=None,
        stats=stats,
        meta={"journal": "all", "groups": "1"},
        grouped=1,
    )
    # Of plain commands it is asked those that tell how far the readers of a journal are.
    answers = {"HGETALL": [b"archive", b"1-0 1"], "HGET": 0, "XRANGE": None}

    def answer(command: Any) -> Any:
        if command.script is not None and command.script.name == "largest":
            return 1, [LargeGroup("acme", 1, 1, 0)]
        return answers[command.args[0]] if command.script is None else figures(queue="")

    def answer_each(commands: list[Any], **_: Any) -> list[Any]:
        return [answer(each) for each in commands]

    one_server = SimpleNamespace(clustered=False, last_node=lambda key: None)
    server: Any = SimpleNamespace(execute_each=answer_each, factory=one_server)
    return QueueCollector(server, lambda: [QueueKeys("shop", queue) for queue in TASKS]).collect()


def reaper_families() -> Iterator[Family]:
    """What a reaper exports of itself after a pass."""
    registry = CollectorRegistry()
    metrics, tick = ReaperMetrics(registry), Tick(queues=len(TASKS))
    metrics.server("valkey", "9.1.2", durable=True)
    metrics.memory(0.5)
    for queue, task in TASKS.items():
        tick.fire(queue, task)
    metrics.passed(tick)
    return iter(registry.collect())


def worker_families() -> Iterator[Family]:
    """What a worker exports whose app has been imported, and which has done nothing yet."""
    factory = ConnectionFactory("redis://127.0.0.1:1")
    supervisor = Supervisor("shop", factory, RunOptions(procs=1), LogOptions())
    manifest = Manifest(
        namespace="shop",
        queues=list(TASKS),
        tasks=[
            ManifestTask(
                task,
                queue,
                is_async=False,
                max_receives=None,
                batch=0,
                max_wait_s=0.0,
            )
            for queue, task in TASKS.items()
        ],
    )
    supervisor._manifests.newest = manifest
    return iter(list(ChildrenCollector(supervisor).collect()))


def exported(families: Iterator[Family], *, truth: bool) -> Iterator[tuple[str, Metric]]:
    """Read name and metric from what a collector yields; `le` is not a label of ours."""
    for family in families:
        labels: dict[str, dict[str, None]] = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label != "le":
                    labels.setdefault(label, {})[value] = None
        name = family.name + ("_total" if family.type == "counter" else "")
        examples = {label: tuple(values) for label, values in labels.items()}
        yield name, Metric(family.type, examples, truth)  # type: ignore[arg-type]


METRICS: Mapping[str, Metric] = {
    **dict(exported(queue_families(), truth=True)),
    **dict(exported(worker_families(), truth=False)),
    **dict(exported(reaper_families(), truth=False)),
}


# -- commands ----------------------------------------------------------------------------------


def flags_by_command(
    command: click.Command, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, frozenset[str]]]:
    """Walk the tree of commands: each leaf as its words ("queue ls"), with all of its flags."""
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from flags_by_command(below, (*words, name))
        return
    options = [param for param in command.params if isinstance(param, click.Option)]
    yield (
        " ".join(words),
        frozenset(
            name
            for option in options
            for name in (*option.opts, *option.secondary_opts)
            if name.startswith("--")
        ),
    )


FLAGS: Mapping[str, frozenset[str]] = dict(flags_by_command(cli))
COMMANDS = frozenset(FLAGS)


# -- events ------------------------------------------------------------------------------------


@cache
def events() -> frozenset[str]:
    """Find the names of logged events: the first argument of a call that is named like a level, if it is text."""
    return frozenset(_events())


def _events() -> Iterator[str]:
    levels = {"debug", "info", "warning", "error", "exception", "_log_end"}
    for path in CODE.rglob("*.py"):
        for node in nodes(path):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr=level), args=[ast.Constant(value=str(event)), *_]
                ) if level in levels:
                    yield event
                case ast.Call(
                    func=ast.Name(id="log" | "tell"), args=[ast.Constant(value=str(event)), *_]
                ):
                    yield event
