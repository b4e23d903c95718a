"""`qworker queue` pause and resume: stop sending (in), receiving (out) or both."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.framework.commands import VerbCommand, json_option, stacked
from qworker.cli.framework.output import Output
from qworker.cli.framework.parameters import QUEUE

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session

__all__ = ["VERBS"]

_STRICT: Final = "; timed-out messages are not requeued"
_queues: Final = stacked(
    click.argument("queues", type=QUEUE, nargs=-1, metavar="[QUEUE...]"),
    click.option("--all", "everything", is_flag=True, help="All queues."),
)


@click.command("pause", cls=VerbCommand)
@_queues
@click.option("--in", "incoming", is_flag=True, help="Pause sending only.")
@click.option("--out", "outgoing", is_flag=True, help="Pause receiving only.")
@click.option(
    "--strict", is_flag=True, help="Do not requeue timed-out messages while input is paused."
)
@click.option("--state", is_flag=True, help="Only show which directions are paused.")
@json_option
@click.pass_obj
def pause(
    session: Session,
    queues: tuple[str, ...],
    everything: bool,
    incoming: bool,
    outgoing: bool,
    strict: bool,
    state: bool,
) -> Output:
    """Pause queues: refuse sends (--in), deliver nothing (--out), or both by default.

    Messages are still settled, promoted and requeued; with --strict, timed-out ones are requeued after the pause.
    """
    _check_queues(queues, everything)
    directions = set() if state else _directions(incoming, outgoing)
    if strict and "in" not in directions:
        raise click.UsageError("--strict applies only while input is paused (--in)")
    return _change(session, queues, close=directions, strict=strict)


@click.command("resume", cls=VerbCommand)
@_queues
@click.option("--in", "incoming", is_flag=True, help="Resume sending only.")
@click.option("--out", "outgoing", is_flag=True, help="Resume receiving only.")
@json_option
@click.pass_obj
def resume(
    session: Session,
    queues: tuple[str, ...],
    everything: bool,
    incoming: bool,
    outgoing: bool,
) -> Output:
    """Resume queues, in both directions by default."""
    _check_queues(queues, everything)
    return _change(session, queues, reopen=_directions(incoming, outgoing))


def _check_queues(queues: tuple[str, ...], everything: bool) -> None:
    if bool(queues) == everything:
        raise click.UsageError("name queues, or pass --all")


def _directions(incoming: bool, outgoing: bool) -> set[str]:
    """Read the flags --in and --out; neither means both."""
    if incoming == outgoing:
        return {"in", "out"}
    return {"in"} if incoming else {"out"}


def _change(
    session: Session,
    names: Sequence[str],
    *,
    close: Collection[str] = (),
    reopen: Collection[str] = (),
    strict: bool = False,
) -> Output:
    """Close and reopen directions of queues, and report the pauses; with neither nothing is changed.

    Without names: of all queues. All names are checked before the first queue is changed.
    """
    from qworker.client.manage.pauses import PAUSES, change_pauses

    queues = [session.queues.get(name) for name in dict.fromkeys(names or session.queues.names())]
    inspections = {
        queue.name: queue.client.run(
            change_pauses(queue.ref, close=close, reopen=reopen, strict=strict)
        )
        for queue in queues
    }
    return Output(
        {
            "queues": [
                {"queue": name, "paused": inspection.paused, "strict": inspection.strict}
                for name, inspection in inspections.items()
            ]
        },
        [
            f"{name}: {PAUSES.get(inspection.paused, inspection.paused)}"
            f"{_STRICT if inspection.strict else ''}"
            for name, inspection in inspections.items()
        ],
    )


VERBS: Final = (pause, resume)
