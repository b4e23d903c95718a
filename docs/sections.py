"""The generated parts of the reference: what commands, metrics, options, scripts and errors say of themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from qworker import errors
from qworker.cli.main import SECTIONS, cli
from qworker.config.fields import Options, kinds_of, variable_of
from qworker.config.kinds import FlagKind, Kind
from qworker.consumer.board.counters import OUTCOMES
from qworker.consumer.options import RunOptions
from qworker.consumer.supervisor.metrics import ChildrenCollector
from qworker.consumer.supervisor.supervisor import Supervisor
from qworker.daemon.queue_metrics import QueueCollector
from qworker.daemon.reaper_metrics import ReaperMetrics
from qworker.engine.scripts import SCRIPT_NAMES
from qworker.pipeline.options import SparkOptions, camel
from qworker.pipeline.source import schemas
from qworker.store.connections import ConnectionFactory
from qworker.telemetry.options import LogOptions

__all__ = [
    "commands",
    "error_list",
    "error_tree",
    "options_table",
    "outcomes",
    "queue_metrics",
    "reaper_metrics",
    "retry_rules",
    "script_parts",
    "scripts",
    "spark_columns",
    "spark_options",
    "spark_tables",
    "worker_metrics",
]

_LUA: Final = Path(__file__).parent.parent / "qworker" / "lua"
_WIDTH: Final = 100


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table of Markdown; empty cells get a dash."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|") or "–"


# -- command line ------------------------------------------------------------------------------


def commands() -> str:
    """Write the help of every command, by section."""
    # With the names of --help that a user has: click keeps those of the first help that it writes.
    settings = {**cli.context_settings, **_context()}
    root = click.Context(cli, info_name="qworker", **settings)
    parts = [_fence(cli.get_help(root))]
    for title, section in SECTIONS.items():
        parts.append(f"## {title}")
        for name in section:
            command = cli.get_command(root, name)
            assert command is not None
            parts += _command(command, f"qworker {name}", root)
    return "\n\n".join(parts)


def _command(command: click.Command, path: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent, **_context())
    yield f"### `{path}`"
    yield _fence(command.get_help(context))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _command(below, f"{path} {name}", context)


def _context() -> dict[str, Any]:
    return {"terminal_width": _WIDTH, "max_content_width": _WIDTH}


def _fence(text: str) -> str:
    # The last lines only repeat where the global options are explained.
    text = re.sub(r"\n\s*Global options \(see qworker --help\):.*", "", text, flags=re.DOTALL)
    return f"```text\n{text.rstrip()}\n```"


# -- metrics -----------------------------------------------------------------------------------


def queue_metrics() -> str:
    """Write what every reaper exports of the queues."""
    collector = QueueCollector(None, list)  # type: ignore[arg-type]  # asked for what it describes only
    return _metrics(collector.describe())


def reaper_metrics() -> str:
    """Write what a reaper exports of itself."""
    registry = CollectorRegistry()
    metrics = ReaperMetrics(registry)
    metrics.server("valkey", "9.1.2", durable=True)
    metrics.memory(0.5)
    # A metric without samples yet does not show its labels; what collects it knows them.
    declared = {
        name: list(getattr(collector, "_labelnames", ()))
        for name, collector in registry._names_to_collectors.items()
    }
    return _metrics(registry.collect(), declared)


def worker_metrics() -> str:
    """Write what a supervisor exports of its children."""
    # One that is never started, and so knows no task: its metrics have their names and labels anyway.
    supervisor = Supervisor("", ConnectionFactory("redis://"), RunOptions(), LogOptions())
    return _metrics(ChildrenCollector(supervisor).collect())


def outcomes() -> str:
    """Name the outcomes of a handled message."""
    return ", ".join(f"`{name}`" for name in OUTCOMES)


def _metrics(metrics: Iterable[Metric], declared: Mapping[str, list[str]] | None = None) -> str:
    rows = []
    for metric in sorted(metrics, key=lambda each: each.name):
        name = metric.name + ("_total" if metric.type == "counter" else "")
        labels = (declared or {}).get(metric.name) or _labels(metric)
        rows.append((f"`{name}`", metric.type, ", ".join(labels), metric.documentation))
    return table(("Metric", "Type", "Labels", "Meaning"), rows)


def _labels(metric: Metric) -> list[str]:
    declared = getattr(metric, "_labelnames", ())
    found = [name for sample in metric.samples for name in sample.labels]
    return list(dict.fromkeys(name for name in (*declared, *found) if name != "le"))


# -- options -----------------------------------------------------------------------------------


def options_table(options: type[Options], *, command: bool, flags: bool = True) -> str:
    """Write the fields of an options class; `command`: with their environment variables, and `flags`, if there are."""
    default = options()
    rows = []
    for name, kind in kinds_of(options).items():
        names = [name]
        if command:
            flag = f"--{name.replace('_', '-')}"
            if flags:
                names.append(f"{flag}, --no-{flag[2:]}" if isinstance(kind, FlagKind) else flag)
            names.append(variable_of(options, name))
        zero = f"; 0: {kind.zero}" if kind.zero else ""
        rows.append(
            (
                "<br>".join(f"`{each}`" for each in names),
                kind.help[:1].upper() + kind.help[1:] + zero,
                _default(kind, getattr(default, name)),
                re.sub(r"^it must be (an? )?", "", kind.limit),
            )
        )
    return table(("Option", "Meaning", "Default", "Accepted"), rows)


def spark_options(options: type[SparkOptions]) -> str:
    """Write the options of a read or write with Spark, by the names that Spark takes."""
    default = options()
    rows = [
        (
            f"`{camel(name)}`",
            kind.help[:1].upper() + kind.help[1:] + (f"; 0: {kind.zero}" if kind.zero else ""),
            "all" if getattr(default, name) == () else _default(kind, getattr(default, name)),
            re.sub(r"^it must be (an? )?", "", kind.limit),
        )
        for name, kind in kinds_of(options).items()
    ]
    return table(("Option", "Meaning", "Default", "Accepted"), rows)


def spark_tables() -> str:
    """Write what the module of the schemas says of the tables and their rows."""
    return "\n".join((inspect.getdoc(schemas) or "").splitlines()[2:])


def spark_columns() -> str:
    """Write the columns of each table with their types."""
    rows = [
        (f"`{name}`", ", ".join(f"`{column}` {kind}" for column, kind in columns))
        for name, columns in schemas.COLUMNS.items()
    ]
    return table(("Table", "Columns"), rows)


def _default(kind: Kind, value: object) -> str:
    if value is None:
        return kind.none
    shown = kind.show(value)
    return f"`{shown}`" if shown else ""


# -- scripts -----------------------------------------------------------------------------------


def scripts() -> str:
    """Write the header of each script."""
    return "\n\n".join(
        f"## {name}\n\n{_header(next(_LUA.glob(f'[!l]*/{name}.lua')))}" for name in SCRIPT_NAMES
    )


def script_parts() -> str:
    """Write the header of the parts whose header is a contract."""
    names = ("keys", "sender_keys", "envelope", "outcomes", "journal")
    return "\n\n".join(
        f"## lib/{name}\n\n{_header(_LUA / 'lib' / f'{name}.lua')}" for name in names
    )


def _header(path: Path) -> str:
    header = []
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("#!lua"):
            continue
        if line.startswith("--- include") or not line.startswith("--"):
            break
        header.append(line.removeprefix("--").removeprefix(" "))
    return "```text\n" + "\n".join(header) + "\n```"


# -- errors ------------------------------------------------------------------------------------


def error_tree() -> str:
    """Write the tree as it is drawn at the top of the errors."""
    tree = (errors.__doc__ or "").partition("\n\n")[2].partition("\n\nControl flow")[0]
    return f"```text\n{tree.strip()}\n```"


def retry_rules() -> str:
    """Write what the rules mean."""
    source = inspect.getsource(errors.server)
    found = re.findall(r'(\w+) = "\w+"\s+"""(.+?)"""', source, re.DOTALL)
    return table(("`retry`", "Meaning"), [(f"`RetryRule.{name}`", text) for name, text in found])


def error_list() -> str:
    """Write what each error says of itself."""
    rows = []
    for name in errors.__all__:
        error = getattr(errors, name)
        if isinstance(error, type) and issubclass(error, Exception):
            text = inspect.cleandoc(error.__doc__ or "").partition("\n\n")[0]
            rule = error.retry.value if issubclass(error, errors.ServerError) else ""
            rows.append((f"`{name}`", text, rule))
    return table(("Error", "Meaning", "`retry`"), rows)
