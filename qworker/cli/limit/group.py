"""`qworker limit`: list, set, show, remove; which groups wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import CommandGroup, json_option
from qworker.cli.framework.output import Note, Output, Table
from qworker.cli.framework.parameters import QUEUE, NumberRange
from qworker.cli.framework.terminal import Column, note
from qworker.cli.limit.tables import (
    GROUP_COLUMNS,
    LIMIT_COLUMNS,
    LOAD_COLUMNS,
    group_document,
    group_row,
    limit_document,
    limit_documents,
    limit_rows,
    limit_table,
    limits_of,
    load_document,
    load_row,
)

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.client.manage.limits import Limit

__all__ = ["command"]

_NAMES: Final = (
    "NAME is a group (acme/ann), all groups of a parent together (acme/) or each of them (acme/*), "
    "or each group (*) or parent (*/)."
)


@click.group(cls=CommandGroup)
def command() -> None:
    """List, set and remove limits of groups; see which groups wait, and why."""


@command.command("ls")
@click.argument("queue", type=QUEUE, required=False)
@json_option
@click.pass_obj
def list_all(session: Session, queue: str | None) -> Output:
    """List the limits of a queue, or of all queues."""
    if queue is None:
        by_queue = _of_all(session)
        return Output(
            {
                "queues": [
                    {"queue": name, "limits": limit_documents(found)}
                    for name, found in by_queue.items()
                ]
            },
            Table(
                (Column("QUEUE", wide=True), *LIMIT_COLUMNS),
                [(name, *row) for name, found in by_queue.items() for row in limit_rows(found)],
                "no queue has limits",
            ),
        )
    found = limits_of(session, queue)
    return Output(
        {"queue": queue, "limits": limit_documents(found)},
        limit_table(found, f"{queue} has no limits"),
    )


@command.command("set", epilog=_NAMES)
@click.argument("queue", type=QUEUE)
@click.argument("name")
@click.option(
    "--concurrency",
    metavar="N",
    help="Messages that run at a time.",
)
@click.option(
    "--rate",
    metavar="RATE",
    help="Messages that start per unit of time: 100/s, 5/10m.",
)
@click.option(
    "--burst",
    metavar="N",
    help="Messages that may start at once within the rate. [default: those of 100 ms]",
)
@click.option("--weight", metavar="N", help="Share of the turns, 0.01 to 100. [default: 1]")
@click.option(
    "--max-waiting",
    metavar="N",
    help="Maximum number of waiting messages of a group; more sends are refused.",
)
@click.option(
    "--with",
    "with_queues",
    type=QUEUE,
    multiple=True,
    metavar="QUEUE",
    help="Apply concurrency and rate of a parent (acme/) to this queue and QUEUE together; repeatable.",
)
@json_option
@click.pass_obj
def set_one(
    session: Session, /, queue: str, name: str, with_queues: tuple[str, ...], **options: str | None
) -> Output:
    """Set limits of a queue, for messages that start from now on; other limits with this NAME stay.

    `none` as a value removes that limit. A more specific name takes precedence over a general one, limit
    by limit. All workers apply them at once.
    """
    from qworker.client.manage.limits import check_limit, read_value, set_limit, shared_limits

    given = {
        option: read_value(option, text) for option, text in options.items() if text is not None
    }
    check_limit(name, with_queues, **given)
    ref = session.queues.get(queue).ref
    for other in with_queues:
        session.queues.get(other, "with")
    limit = session.client.run(set_limit(ref, name, with_queues=with_queues, **given))
    document = {"queue": queue, **limit_document(name, limit)}
    shared = session.client.run(shared_limits(ref)).get(name)
    if shared is None:
        return Output(document, f"{name} of {queue}: {limit.text}")
    queues = [*shared.queues]
    text = f"{name} of {', '.join(queues)} together: {limit.text}"
    return Output({**document, "queues": queues}, text)


@command.command("show", epilog=_NAMES)
@click.argument("queue", type=QUEUE)
@click.argument("name", required=False)
@json_option
@click.pass_obj
def show(session: Session, queue: str, name: str | None) -> Output:
    """Show how much of the limits of a queue is used: how many messages run and wait, and when the next may start.

    With NAME, shows only that limit. Reads about 1,000 groups of each shard.
    """
    from qworker.client.manage.limit_load import limit_loads
    from qworker.errors import InvalidOptionError

    found = session.client.run(limit_loads(session.queues.get(queue).ref))
    if name is not None:
        chosen = [load for load in found if load.name == name]
        if not chosen:
            known = ", ".join(load.name for load in found) or "none"
            raise InvalidOptionError(
                "limit", f"{ascii(name)[:80]} is not one of {queue}", f"its limits: {known}"
            )
        found = chosen
    now_ms = session.now_ms()
    return Output(
        {
            "queue": queue,
            **_wait_of(session, queue),
            "limits": [load_document(load, now_ms) for load in found],
        },
        Table(LOAD_COLUMNS, [load_row(load, now_ms) for load in found], f"{queue} has no limits"),
    )


@command.command("rm", epilog=_NAMES)
@click.argument("queue", type=QUEUE)
@click.argument("name")
@json_option
@click.pass_obj
def remove(session: Session, queue: str, name: str) -> Output:
    """Remove the limits with this NAME."""
    from qworker.client.manage.limits import remove_limit

    removed = session.client.run(remove_limit(session.queues.get(queue).ref, name))
    text = f"{name} of {queue}: no limits" if removed else Note(f"{name} of {queue} had no limits")
    return Output({"queue": queue, "limit": name, "removed": removed}, text)


@command.command("resume")
@click.argument("queue", type=QUEUE)
@click.argument("group")
@json_option
@click.pass_obj
def resume(session: Session, queue: str, group: str) -> Output:
    """End the wait of a GROUP, or of a parent such as acme/, that a handler asked for by raising RateLimited.

    Limits still hold. `qworker queue resume` ends the wait of a whole queue.
    """
    from qworker.client.manage.limits import resume_group

    resumed = session.client.run(resume_group(session.queues.get(queue).ref, group))
    waits = f"{group} of {queue}: no handler's RateLimited makes it wait"
    text = f"{group} of {queue}: resumed" if resumed else Note(waits)
    return Output({"queue": queue, "group": group, "resumed": resumed}, text)


@command.command("groups")
@click.argument("queue", type=QUEUE)
@click.option(
    "--limit",
    "-n",
    "most",
    type=NumberRange(1, 1000),
    default=10,
    help="Maximum number of groups, the largest first. [default: 10]",
)
@json_option
@click.pass_obj
def show_groups(session: Session, queue: str, most: int) -> Output:
    """Show the groups with the most messages, and what they wait for: a slot, a time, or their turn."""
    from qworker.client.manage.limits import groups
    from qworker.formats import word

    found = session.client.run(groups(session.queues.get(queue).ref, most=most))
    now_ms = session.now_ms()
    none = f"no group of {queue} waits or runs"
    told_to_wait = [group for group in found if group.reason == "rate_limited"]
    if told_to_wait:
        note(
            "to end a wait that a handler asked for: "
            f"qworker limit resume {queue} {word(told_to_wait[0].told_to_wait)}"
        )
    return Output(
        {
            "queue": queue,
            **_wait_of(session, queue),
            "groups": [group_document(group) for group in found],
        },
        Table(GROUP_COLUMNS, [group_row(group, now_ms) for group in found], none),
    )


def _wait_of(session: Session, queue: str) -> dict[str, Any]:
    """Say if the whole queue waits, so that no group of it runs whatever its own limits are; also for `--json`."""
    from qworker.formats import span

    seen = session.queues.get(queue).inspect()
    if seen.paused in ("out", "all"):
        note(f"{queue} is paused, so no message of it starts: qworker queue resume {queue}")
    elif seen.limited_until_ms is not None:
        left = span((seen.limited_until_ms - seen.now_ms) / 1000)
        note(
            f"{queue} waits for {left} more, since a handler raised RateLimited for a message without a group; "
            f"qworker queue resume {queue} ends that"
        )
    return {"paused": seen.paused, "limited_until_ms": seen.limited_until_ms}


def _of_all(session: Session) -> dict[str, dict[str, tuple[Limit, list[str]]]]:
    """Read the limits of all queues: asks in one trip which have any. Those that cannot be read are named."""
    from qworker.client.manage.limits import stored_limits
    from qworker.errors import QworkerError

    names = session.queues.names()
    answers = session.client.execute_each(
        [stored_limits(session.queues.ref(name)) for name in names]
    )
    found = {}
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, QworkerError):
            note(f"warning: queue {name} cannot be read: {answer}")
        elif answer:
            found[name] = limits_of(session, name)
    return found
