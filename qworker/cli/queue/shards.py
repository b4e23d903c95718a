"""`qworker queue shards`: show the shards of a queue, or change their number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import VerbCommand, json_option, yes_option
from qworker.cli.framework.output import Block, Line, Output, Table
from qworker.cli.framework.parameters import DURATION, QUEUE, NumberRange
from qworker.cli.framework.terminal import Cell, Column

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.client.manage.reshard import Division

__all__ = ["shards"]

_NUMBERS: Final = ("ready", "delayed", "unacked", "dead")


@click.command("shards", cls=VerbCommand)
@click.argument("queue", type=QUEUE)
@click.argument("number", type=NumberRange(1, 64), required=False)
@click.option(
    "--wait",
    type=DURATION,
    default="15s",
    help="Time to wait for workers to receive from new shards. [default: 15s]",
)
@yes_option
@json_option
@click.pass_obj
def shards(session: Session, queue: str, number: int | None, wait: str, yes: bool) -> Output:
    """Show the shards of a queue and their nodes, or divide it into NUMBER shards.

    Stored messages stay where they are. Workers receive from new shards before messages are sent there. Shards that are
    removed accept no more messages, and are dropped once they are empty: by a daemon, or by running this again.
    """
    from qworker.cli.framework.confirm import confirm
    from qworker.formats import count

    opened = session.queues.get(queue)
    if opened.ref.single:
        raise click.UsageError(f"{queue} is a shard; name its queue: {opened.keys.name}")
    division = opened.division()
    if number is not None:
        if number != division.active:
            confirm(
                f"Divide {queue} into {count(number, 'shard')}? It has {division.active} now.",
                yes=yes,
            )
        division = opened.divide(number, wait=wait)
    nodes = _nodes(session, division)
    document = {
        "queue": queue,
        "active": division.active,
        "shards": [
            {
                "shard": index,
                "node": nodes[index] or None,
                "draining": index >= division.active,
                **{name: getattr(shard, name) for name in _NUMBERS},
            }
            for index, shard in enumerate(division.shards)
        ],
    }
    return Output(document, _text(division, nodes))


def _text(division: Division, nodes: list[str]) -> Iterator[str | Block]:
    from qworker.formats import count

    columns = [Column("SHARD"), Column("NODE", wide=True), Column("STATE")]
    columns += [Column(name.upper(), number=True) for name in _NUMBERS]
    rows: list[list[Cell | str]] = []
    for index, shard in enumerate(division.shards):
        draining = index >= division.active
        state = Cell("draining", "warn") if draining else Cell("active", "good")
        row: list[Cell | str] = [str(index), nodes[index] or "-", state]
        rows.append([*row, *(count(getattr(shard, name)) for name in _NUMBERS)])
    yield Table(columns, rows)
    if division.draining:
        yield Line()
        yield (
            f"{count(len(division.draining), 'shard')} draining, until no message and no dead letter is left: "
            f"qworker dead ls {division.queue}"
        )


def _nodes(session: Session, division: Division) -> list[str]:
    """Name the node of each shard in a Cluster."""
    factory = session.client.factory
    if not factory.clustered:
        return [""] * len(division.shards)
    ref = session.queues.ref(division.queue)
    nodes: list[Any] = [
        factory.locate(ref.shard_of(index).keys.meta) for index in range(len(division.shards))
    ]
    return [str(node) for node in nodes]
