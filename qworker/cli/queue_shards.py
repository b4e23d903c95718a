"""`qworker queue shards`: show how a queue is divided, or divide it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.parameters import DURATION, QUEUE
from qworker.cli.screen import Cell, Column, print_json, print_line, print_table
from qworker.cli.verbs import Verb, json_option, yes_option

if TYPE_CHECKING:
    from qworker.cli.session import Session
    from qworker.client.sharding import Division

__all__ = ["shards"]

_NUMBERS: Final = ("ready", "delayed", "unacked", "dead")


@click.command("shards", cls=Verb)
@click.argument("queue", type=QUEUE)
@click.argument("number", type=click.IntRange(1, 64), required=False)
@click.option(
    "--wait",
    type=DURATION,
    default="15s",
    help="How long to wait for workers to receive from new shards. [default: 15s]",
)
@yes_option
@json_option
@click.pass_obj
def shards(
    session: Session, queue: str, number: int | None, wait: str, yes: bool, as_json: bool
) -> None:
    """Show the shards of a queue, and on which node of a Cluster each is; with NUMBER, divide it into so many.

    Messages that are there stay where they are. More shards: workers receive from the new ones before anything is sent
    there. Fewer: those that go take no more messages, and are given up when they are empty: by a daemon, or by calling
    this again.
    """
    from qworker.cli.confirm import confirm
    from qworker.cli.formats import count

    place = session.queue(queue)
    if place.ref.single:
        raise click.UsageError(f"{queue} is a shard already; name its queue: {place.keys.name}")
    after = place.division()
    if number is not None:
        if number != after.active:
            confirm(
                f"Divide {queue} into {count(number, 'shard')}? It has {after.active}.", yes=yes
            )
        after = place.divide(number, wait=wait)
    nodes = _nodes(session, after)
    if as_json:
        print_json(
            {
                "queue": queue,
                "active": after.active,
                "shards": [
                    {
                        "shard": at,
                        "node": nodes[at] or None,
                        "draining": at >= after.active,
                        **{name: getattr(each, name) for name in _NUMBERS},
                    }
                    for at, each in enumerate(after.shards)
                ],
            }
        )
        return
    columns = [Column("SHARD"), Column("NODE", wide=True), Column("STATE")]
    columns += [Column(name.upper(), number=True) for name in _NUMBERS]
    rows: list[list[Cell | str]] = []
    for at, each in enumerate(after.shards):
        state = Cell("draining", "warn") if at >= after.active else Cell("active", "good")
        row: list[Cell | str] = [str(at), nodes[at] or "-", state]
        rows.append([*row, *(count(getattr(each, name)) for name in _NUMBERS)])
    print_table(columns, rows)
    if after.draining:
        print_line()
        print_line(
            f"{count(len(after.draining), 'shard')} to run empty, of dead letters too: qworker dead ls {queue}"
        )


def _nodes(session: Session, division: Division) -> list[str]:
    """Where each shard is, in a Cluster."""
    factory = session.client.factory
    if not factory.clustered:
        return [""] * len(division.shards)
    places: list[Any] = [
        factory.locate(session.ref(division.queue).shard_of(at).keys.meta)
        for at in range(len(division.shards))
    ]
    return [str(each) for each in places]
