"""`qworker spark redrive`: put back the dead letters that a condition of SQL chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from qworker.cli.confirm import confirm
from qworker.cli.formats import count, shortened
from qworker.cli.parameters import QUEUE
from qworker.cli.screen import Column, note, print_json, print_line, print_table
from qworker.cli.session import Session
from qworker.cli.spark_reading import source_options, spark_options, step
from qworker.cli.verbs import Verb, dry_run_option, json_option, yes_option
from qworker.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from qworker.pipeline.writing.redrive import LetterTotals

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark redrive --where "error_class like '%Timeout%'" --dry-run
  qworker spark redrive --where "task = 'send_email' and died_ts > now() - interval 1 day" --rate 500/s
  qworker spark redrive --queue emails --where true --yes
"""


class _Rate(click.ParamType[int]):
    """A number of letters per second: 500 or 500/s."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).removesuffix("/s")
        if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 9 and int(text) > 0):
            self.fail(f"{value!r} is no rate; write letters per second, such as 500/s", param, ctx)
        return int(text)


@click.command(cls=Verb, epilog=_EXAMPLES)
@click.option("--where", metavar="SQL", required=True, help="Which: a condition over 'dead'.")
@click.option("--queue", type=QUEUE, help="Only of this queue. [default: of all queues]")
@click.option("--rate", type=_Rate(), metavar="N/s", help="Letters per second at most.")
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
    rate: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    spark: Callable[[], Any],
) -> None:
    """Put dead letters back to ready with fresh counts; those that die meanwhile are left alone.

    The condition is over the columns of the table dead: queue, task, reason, error_class, error, died_ts, attempt …
    """
    from qworker.pipeline.writing.failures import clear_errors, hush
    from qworker.pipeline.writing.redrive import redrive

    options = source_options(session)
    if queue is not None:
        session.queue(queue)
    running = spark()
    hush(running)
    with step("looking at the dead letters"), clear_errors():
        chosen = _chosen(running, options, where, queue)
        groups = _groups(chosen)
    total = sum(groups.values())
    if not as_json and total and (dry_run or not yes):
        _show(groups)
    found: LetterTotals | None = None
    letters = count(total, "dead letter")
    if total and not dry_run:
        confirm(f"Redrive {letters}, so that they are handled again?", yes=yes)
        with step(f"redriving {letters}"):
            found = redrive(chosen, rate=rate or 0, options=options)
    if as_json:
        _print_document(groups, total, found, dry_run)
    elif found is not None:
        _print_done(found)
    elif total:
        print_line(f"would redrive {letters}; nothing was changed")
    else:
        print_line("no dead letter fits; nothing was changed")


def _chosen(spark: Any, options: dict[str, str], where: str, queue: str | None) -> DataFrame:
    """The dead letters that are meant, read once and kept: what is asked about is what is changed."""
    from pyspark.errors import PySparkException

    reader = spark.read.format("qworker").options(**options).option("table", "dead")
    if queue is not None:
        reader = reader.option("queues", queue)
    dead: DataFrame = reader.load()
    try:
        fitting = dead.where(where)
    except PySparkException as error:
        line = str(error).strip().partition("\n")[0]
        raise InvalidOptionError(
            "--where", shortened(line, 200), f"columns are {', '.join(dead.columns)}"
        ) from error
    return fitting.select("queue", "entry_id", "reason", "task").persist()


def _groups(chosen: DataFrame) -> dict[tuple[str, str, str], int]:
    rows = chosen.groupBy("queue", "reason", "task").count().collect()
    found = {(row["queue"], row["reason"] or "", row["task"] or ""): row["count"] for row in rows}
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))


def _show(groups: dict[tuple[str, str, str], int]) -> None:
    columns = [
        Column("DEAD", number=True),
        Column("QUEUE"),
        Column("REASON"),
        Column("TASK", wide=True),
    ]
    print_table(
        columns,
        [[count(number), queue, reason, task] for (queue, reason, task), number in groups.items()],
    )


def _print_document(
    groups: dict[tuple[str, str, str], int],
    total: int,
    found: LetterTotals | None,
    dry_run: bool,
) -> None:
    reasons: Counter[str] = Counter()
    tasks: Counter[str] = Counter()
    for (_, reason, task), number in groups.items():
        reasons[reason] += number
        tasks[task] += number
    print_json(
        {
            "matched": total,
            "by_reason": dict(reasons.most_common()),
            "by_task": dict(tasks.most_common()),
            "redriven": found.done if found else 0,
            "gone": found.gone if found else 0,
            "foreign": found.foreign if found else 0,
            "dry_run": dry_run,
        }
    )


def _print_done(found: LetterTotals) -> None:
    print_line(f"redriven {count(found.done, 'dead letter')}")
    if found.gone:
        note(f"{count(found.gone)} had gone meanwhile")
    if found.foreign:
        note(f"{count(found.foreign)} stay: they are foreign, no consumer can take them")
