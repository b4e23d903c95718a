"""`qworker spark redrive`: redrive the dead letters that match a condition in SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from qworker.cli.framework.commands import VerbCommand, dry_run_option, json_option, yes_option
from qworker.cli.framework.confirm import confirm
from qworker.cli.framework.context import Session
from qworker.cli.framework.output import Block, Note, Output, Table
from qworker.cli.framework.parameters import QUEUE, rate_option
from qworker.cli.framework.terminal import Column
from qworker.cli.spark.reading import live_source
from qworker.cli.spark.running import spark_options, step
from qworker.errors import InvalidOptionError
from qworker.formats import count, shortened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from qworker.pipeline.sink.redrive import RedriveTotals

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark redrive --where "error_class like '%Timeout%'" --dry-run
  qworker spark redrive --where "task = 'send_email'" --rate 500/s
  qworker spark redrive --where "died_ts > now() - interval 1 day"
  qworker spark redrive --queue emails --where true --yes
"""


@click.command(cls=VerbCommand, epilog=_EXAMPLES)
@click.option("--where", metavar="SQL", required=True, help="Condition over the table dead.")
@click.option("--queue", type=QUEUE, help="Only dead letters of this queue. [default: all queues]")
@rate_option
@dry_run_option
@yes_option
@json_option
@spark_options
@click.pass_obj
def command(
    session: Session,
    /,
    where: str,
    queue: str | None,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    spark: Callable[[], Any],
) -> Iterator[Output]:
    """Move dead letters back to ready, with fresh counts, except those that die during the command.

    Columns of the table dead are queue, task, reason, error_class, error, died_ts, attempt …
    """
    from qworker.pipeline.failures import clear_errors, silence
    from qworker.pipeline.sink.redrive import redrive

    options = live_source(session)
    if queue is not None:
        session.queues.get(queue)
    running = spark()
    silence(running)
    with step("reading the dead letters"), clear_errors():
        chosen = _chosen(running, options, where, queue)
        groups = _groups(chosen)
    total = sum(groups.values())
    if total and (dry_run or not yes):
        yield Output(text=_table(groups))
    done: RedriveTotals | None = None
    number = count(total, "dead letter")
    if total and not dry_run:
        confirm(f"Redrive {number}?", yes=yes)
        with step(f"redriving {number}"):
            done = redrive(chosen, rate=rate or 0, options=options)
    if done is not None:
        text: list[str | Block] = _text(done)
    elif total:
        text = [f"would redrive {number}; nothing was changed"]
    else:
        text = ["no matching dead letter; nothing was changed"]
    yield Output(_document(groups, total, done, dry_run=dry_run), text)


def _chosen(spark: Any, options: dict[str, str], where: str, queue: str | None) -> DataFrame:
    """Read the dead letters that match once, and keep them: those that are counted are those that are changed."""
    from pyspark.errors import PySparkException

    reader = spark.read.format("qworker").options(**options).option("table", "dead")
    if queue is not None:
        reader = reader.option("queues", queue)
    dead: DataFrame = reader.load()
    try:
        matching = dead.where(where)
    except PySparkException as error:
        line = str(error).strip().partition("\n")[0]
        raise InvalidOptionError(
            "--where", shortened(line, 200), f"columns are {', '.join(dead.columns)}"
        ) from error
    return matching.select("queue", "entry_id", "reason", "task").persist()


def _groups(chosen: DataFrame) -> dict[tuple[str, str, str], int]:
    rows = chosen.groupBy("queue", "reason", "task").count().collect()
    groups = {(row["queue"], row["reason"] or "", row["task"] or ""): row["count"] for row in rows}
    return dict(sorted(groups.items(), key=lambda group: (-group[1], group[0])))


def _table(groups: dict[tuple[str, str, str], int]) -> Table:
    columns = [
        Column("DEAD", number=True),
        Column("QUEUE"),
        Column("REASON"),
        Column("TASK", wide=True),
    ]
    return Table(columns, [[count(number), *group] for group, number in groups.items()])


def _document(
    groups: dict[tuple[str, str, str], int],
    total: int,
    done: RedriveTotals | None,
    *,
    dry_run: bool,
) -> dict[str, Any]:
    reasons: Counter[str] = Counter()
    tasks: Counter[str] = Counter()
    for (_, reason, task), number in groups.items():
        reasons[reason] += number
        tasks[task] += number
    return {
        "matched": total,
        "by_reason": dict(reasons.most_common()),
        "by_task": dict(tasks.most_common()),
        "redriven": done.done if done else 0,
        "gone": done.gone if done else 0,
        "foreign": done.foreign if done else 0,
        "dry_run": dry_run,
    }


def _text(done: RedriveTotals) -> list[str | Block]:
    text: list[str | Block] = [f"redriven {count(done.done, 'dead letter')}"]
    if done.gone:
        text.append(Note(f"skipped {count(done.gone, 'dead letter')}: already gone"))
    if done.foreign:
        text.append(
            Note(f"skipped {count(done.foreign, 'foreign item')}, which consumers cannot handle")
        )
    return text
