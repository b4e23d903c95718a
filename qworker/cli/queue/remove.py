"""`qworker queue` purge and rm: delete the messages of a queue, or the queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.framework.commands import VerbCommand, dry_run_option, json_option, yes_option
from qworker.cli.framework.confirm import confirm
from qworker.cli.framework.output import Output
from qworker.cli.framework.parameters import QUEUE
from qworker.cli.framework.terminal import note
from qworker.formats import count
from qworker.wire.states import PURGEABLE

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session

__all__ = ["VERBS"]


@click.command("purge", cls=VerbCommand)
@click.argument("queue", type=QUEUE)
@click.option(
    "--state",
    "states",
    type=click.Choice(PURGEABLE),
    multiple=True,
    help="State of the messages; repeatable. [default: ready]",
)
@dry_run_option
@yes_option
@json_option
@click.pass_obj
def purge(
    session: Session, queue: str, states: tuple[str, ...], dry_run: bool, yes: bool
) -> Output:
    """Delete all messages in a state. Unacked messages are not touched."""
    from itertools import product

    from qworker.cli.framework.progress import progress
    from qworker.client.manage.remove import purge_shard

    opened = session.queues.get(queue)
    inspection = opened.inspect()
    sizes = {state: getattr(inspection, state) for state in dict.fromkeys(states or ("ready",))}
    if dry_run:
        return Output(
            {"queue": queue, "deleted": sizes, "dry_run": True},
            f"would purge {queue}: {_listed(sizes)}; nothing was changed",
        )
    if any(sizes.values()):
        confirm(f"Permanently purge {queue}: {_listed(sizes)}?", yes=yes)
    deleted = dict.fromkeys(sizes, 0)
    try:
        with progress(f"purging {queue}", sum(sizes.values())) as advance:
            for shard, state in product(session.client.run(opened.ref.every_shard()), sizes):

                def count_them(messages: int, state: str = state) -> None:
                    deleted[state] += messages
                    advance(messages)

                session.client.run(purge_shard(shard, state, count_them))
    except BaseException:
        note(f"interrupted: purged {queue}: {_listed(deleted)}; the others are unchanged")
        raise
    return Output(
        {"queue": queue, "deleted": deleted, "dry_run": False},
        f"purged {queue}: {_listed(deleted)}",
    )


@click.command("rm", cls=VerbCommand)
@click.argument("queue", type=QUEUE)
@dry_run_option
@yes_option
@json_option
@click.pass_obj
def remove(session: Session, queue: str, dry_run: bool, yes: bool) -> Output:
    """Delete a queue with all its messages (unacked ones and dead letters too), attributes and counters."""
    opened = session.queues.get(queue)
    inspection = opened.inspect()
    sizes = {state: getattr(inspection, state) for state in ("ready", "delayed", "unacked", "dead")}
    contents = _listed(sizes)
    if dry_run:
        text = f"would remove {queue} with {contents}; nothing was changed"
    else:
        workers = session.workers() or ()
        names = [worker.name for worker in workers if worker.listens_to(queue)]
        if names:
            note(f"workers still receive from it: {', '.join(names[:5])}")
        confirm(
            f"Permanently remove {queue} with {contents}, its attributes and counters?", yes=yes
        )
        opened.remove()
        text = f"removed {queue} with {contents}"
    return Output({"queue": queue, "removed": not dry_run, "messages": sizes}, text)


VERBS: Final = (purge, remove)


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{count(number)} {state}" for state, number in sizes.items())
