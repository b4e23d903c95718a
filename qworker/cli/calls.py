"""`qworker calls`: groups of calls whose callbacks have not been sent yet; what they wait for; end one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import (
    CommandGroup,
    dry_run_option,
    json_option,
    yes_option,
)
from qworker.cli.framework.output import Block, Fields, Hint, Line, Note, Output, Table
from qworker.cli.framework.paging import cut_notes, limit_option
from qworker.cli.framework.parameters import QUEUE, queue_option
from qworker.cli.framework.terminal import Cell, Column

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.client.calls import CallGroup
    from qworker.client.inspect.group_calls import EndedCall
    from qworker.client.queue import Queue
    from qworker.client.unsent import UnsentCalls

__all__ = ["command", "group_document"]

_TONES: Final = {"blocked": "bad", "running": "good"}
#: Dead calls that are named.
_NAMED: Final = 10


_queue_option: Final = queue_option("The queue of the callback. [default: all queues]")


@click.group(cls=CommandGroup)
def command() -> None:
    """List and show groups of calls; end one without its callback."""


@command.command("ls")
@click.argument("queue", type=QUEUE, required=False)
@limit_option
@json_option
@click.pass_obj
def list_groups(session: Session, queue: str | None, limit: int) -> Output:
    """List groups of calls whose callbacks have not been sent yet, with the number of calls that each waits for.

    QUEUE is the queue of the callback. Without it, lists the groups of all queues.
    """
    groups: list[CallGroup] = []
    cut: list[str] = []
    for opened in session.queues.searched(queue):
        found = opened.calls(limit)
        groups += found[:limit]
        if len(found) > limit or (len(found) == limit and opened.calls(1, skip=limit)):
            cut.append(opened.name)
    return Output(
        {"groups": [group_document(one) for one in groups]},
        itertools.chain(_listing(session, groups), cut_notes(cut, limit)),
    )


@command.command("show")
@click.argument("group_id", metavar="ID")
@_queue_option
@json_option
@click.pass_obj
def show(session: Session, group_id: str, queue: str | None) -> Output:
    """Show a group of calls: its state, how many calls it waits for, and which are dead letters.

    Also shows calls that wait in an outbox because their queue refuses them.
    """
    from qworker.client.inspect.group_calls import read_calls
    from qworker.client.unsent import unsent_calls

    opened, group = _find(session, group_id, queue)
    unsent = opened.client.run(unsent_calls(opened.ref, group.id)) if group.is_open else []
    document = {**group_document(group), "unsent": [asdict(one) for one in unsent]}
    first = group.dead[0] if group.dead and group.is_open else None
    dead = (
        opened.client.run(read_calls(opened.ref, group.id, first, 1)) if first is not None else []
    )
    named = [{"queue": call.queue, "id": call.message_id} for call in dead or () if call.queue]
    document["first_dead"] = named[0] if named else None
    return Output(document, _text(group, unsent, dead or [], session.now_ms()))


@command.command("cancel")
@click.argument("group_id", metavar="ID")
@_queue_option
@dry_run_option
@yes_option
@json_option
@click.pass_obj
def cancel(session: Session, group_id: str, queue: str | None, dry_run: bool, yes: bool) -> Output:
    """Cancel a group of calls: its callback is not sent, and its calls are cancelled.

    Waiting calls are deleted, and workers of running calls see the cancel within 5 s. If the command is interrupted,
    run it again. A run that gathers the group continues: its gather fails for the calls that have not ended.
    """
    from qworker.cli.framework.confirm import confirm
    from qworker.formats import count

    opened, group = _find(session, group_id, queue)
    name = f"group of calls {group.id} of {group.queue}"
    if group.state == "decided":
        raise click.ClickException(f"too late: the {name} is decided")
    document: dict[str, Any] = {"id": group.id, "queue": group.queue, "cancelled": None}
    if dry_run:
        text = f"would cancel the {name}, which waits for {group.left} calls; nothing was changed"
        return Output(document, text)
    confirm(f"Cancel the {name} and its calls?", yes=yes)
    done = opened.cancel_calls(group.id)
    if done is None:
        raise click.ClickException(f"too late: the {name} has ended")
    document |= {
        "cancelled": done.cancelled,
        "cancelling": done.cancelling,
        "too_late": done.too_late,
    }
    return Output(
        document,
        f"cancelled the {name}: {count(done.cancelled, 'message')} waited, {done.cancelling:,} run and are "
        f"asked to stop, {count(done.too_late, 'call')} had ended",
    )


@command.command("abandon")
@click.argument("group_id", metavar="ID")
@_queue_option
@dry_run_option
@yes_option
@json_option
@click.pass_obj
def abandon(session: Session, group_id: str, queue: str | None, dry_run: bool, yes: bool) -> Output:
    """End a group of calls without its callback, such as one that waits for a call that is gone.

    Its calls continue to run. A wait for its result ends as cancelled. A run that gathers them continues: its gather
    fails for the calls that have not ended.
    """
    from qworker.cli.framework.confirm import confirm

    opened, group = _find(session, group_id, queue)
    name = f"group of calls {group.id} of {group.queue}"
    if not group.is_open:
        raise click.ClickException(f"too late: the {name} is {group.state}")
    text = f"would end the {name}, which waits for {group.left} calls; nothing was changed"
    if not dry_run:
        confirm(f"End the {name} without its callback?", yes=yes)
        if not opened.abandon_calls(group.id):
            raise click.ClickException(f"too late: the {name} has ended")
        text = f"ended the {name}"
    document = {"id": group.id, "queue": group.queue, "abandoned": not dry_run}
    return Output(document, text)


def _find(session: Session, group_id: str, queue: str | None) -> tuple[Queue, CallGroup]:
    from qworker.wire.names import check_message_id

    check_message_id(group_id, "ID")
    found = session.queues.find(queue, lambda opened: opened.call_group(group_id))
    if found is None:
        raise click.ClickException(
            f"group of calls {group_id} not found in {session.queues.scope(queue)}: its callback has ended, or the id "
            "is wrong"
        )
    return found


def group_document(group: CallGroup) -> dict[str, Any]:
    """Write a group of calls for `--json`."""
    return {
        "id": group.id,
        "queue": group.queue,
        "state": group.state,
        "policy": group.policy or None,
        "cancel_rest": group.cancel_rest,
        "calls": group.size,
        "left": group.left,
        "sent": group.sent,
        "dead": list(group.dead),
        "began_ms": group.began_ms,
    }


def _listing(session: Session, groups: list[CallGroup]) -> Iterator[str | Block]:
    from qworker.formats import ago

    if not groups:
        yield Note(f"no group of calls waits in namespace {session.namespace!r}")
        return
    columns = [Column("QUEUE"), Column("ID", wide=True), Column("STATE"), Column("POLICY")]
    columns += [Column("CALLS"), Column("LEFT"), Column("DEAD"), Column("BEGAN")]
    yield Table(
        columns,
        [
            [
                group.queue,
                group.id,
                Cell(group.state, _TONES.get(group.state, "")),
                group.policy,
                f"{group.size:,}",
                f"{group.left:,}",
                f"{len(group.dead):,}" if group.dead else "",
                ago(group.began_ms, session.now_ms()) if group.began_ms else "",
            ]
            for group in groups
        ],
    )


def _text(
    group: CallGroup, unsent: Sequence[UnsentCalls], dead: Sequence[EndedCall], now_ms: int
) -> Iterator[str | Block]:
    from qworker.formats import ago, count, word

    fields: dict[str, Cell | str] = {"group of calls": group.id, "queue": group.queue}
    fields["state"] = Cell(group.state, _TONES.get(group.state, ""))
    if group.policy:
        fields["policy"] = (
            f"{group.policy}, cancels the rest" if group.cancel_rest else group.policy
        )
    fields["calls"] = f"{group.size:,}"
    if group.is_open:
        fields["left"] = f"{group.left:,}"
    if group.state == "starting":
        fields["sent"] = f"{group.sent:,}: start it again with its id, or abandon it"
    if group.dead:
        named = ", ".join(f"{group.id}.{number}" for number in group.dead[:_NAMED])
        fields["dead"] = f"{named} …" if len(group.dead) > _NAMED else named
    if unsent:
        fields["in outbox"] = Cell(
            "; ".join(
                f"{count(one.calls, 'call')} for queue {one.destination}, since {ago(one.since_ms, now_ms)}"
                for one in unsent
            ),
            "bad",
        )
    yield Fields(fields)
    if unsent:
        yield Line()
        for one in unsent:
            yield Hint("why it takes none   ", f"qworker queue show {one.destination}")
        yield Hint("what else waits     ", "qworker doctor")
    if group.dead and group.is_open:
        yield Line()
        for call in dead:
            if call.queue:
                name = word(call.message_id)
                yield Hint("why the first is dead ", f"qworker dead show {call.queue} {name}")
                yield Hint(
                    "after the fix         ", f"qworker dead redrive {call.queue} --id {name}"
                )
        yield Hint("end it without them   ", f"qworker calls abandon {word(group.id)}")
        yield Hint("cancel its calls too  ", f"qworker calls cancel {word(group.id)}")
