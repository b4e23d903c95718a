"""`qworker queue`: list, show, create, set, peek, pause, resume, purge, rm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from qworker.cli import queue_looks
from qworker.cli.parameters import QUEUE
from qworker.cli.queue_shards import shards
from qworker.cli.screen import Column, note, print_json, print_line, print_table
from qworker.cli.verbs import Verbs, dry_run_option, json_option, yes_option

if TYPE_CHECKING:
    from qworker.cli.session import Session

__all__ = ["command"]

_COLUMNS: Final = (
    Column("QUEUE"),
    Column("READY", number=True),
    Column("DELAYED", number=True),
    Column("UNACKED", number=True),
    Column("DEAD", number=True),
    Column("OLDEST", number=True),
    Column("STATE", wide=True),
)


@click.group(cls=Verbs)
def command() -> None:
    """List, show and change queues."""


@command.command("ls")
@json_option
@click.pass_obj
def list_queues(session: Session, as_json: bool) -> None:
    """List the queues with their sizes.

    OLDEST is the age of the oldest ready message. A queue is listed from its first send by a client of qworker on;
    one that is only pushed to with RPUSH, when a reaper has found it.
    """
    from qworker.cli.inspections import queue_document, queue_row
    from qworker.errors import BrokenQueueError

    found = session.inspect(session.queues())
    if as_json:
        print_json({"queues": [queue_document(name, each) for name, each in found.items()]})
    elif not found:
        note(session.empty_hint())
    else:
        print_table(_COLUMNS, [queue_row(name, each) for name, each in found.items()])
        for name, each in found.items():
            if isinstance(each, BrokenQueueError):
                note(f"{name} is broken: {each}")
            else:
                for unread in each.unread:
                    note(f"{name} is counted without {unread}")


@command.command("show")
@click.argument("queue", type=QUEUE)
@click.option(
    "--over",
    default="1s",
    metavar="DURATION",
    help="Measure rates over so long; 0 shows none. [default: 1s]",
)
@json_option
@click.pass_obj
def show_queue(session: Session, queue: str, over: str, as_json: bool) -> None:
    """Show one queue: sizes by state and priority, ages, attributes, counters, rates."""
    import time

    from qworker.cli.inspections import print_queue, queue_document
    from qworker.cli.presence import read_workers
    from qworker.cli.rates import rates_between
    from qworker.config.kinds import DurationKind

    over_s = _seconds(DurationKind("", maximum_ms=60_000, zero="none").parse(over, "--over"))
    found = session.queue(queue)
    first = found.inspect()
    if over_s:
        time.sleep(over_s)
    inspection = found.inspect() if over_s else first
    rates = rates_between(first, inspection)
    if as_json:
        print_json(queue_document(queue, inspection, rates=rates, full=True))
    else:
        serving = [each for each in read_workers(session) if each.listens_to(queue)]
        print_queue(inspection, rates, workers=len(serving))


@command.command("create")
@click.argument("queue", type=QUEUE)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@json_option
@click.pass_obj
def create(session: Session, queue: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Make a queue that is not there yet, with attributes as of `queue set`.

    Nothing needs it: a queue comes to be by its first message.
    """
    from qworker.cli.attributes import parse_settings
    from qworker.client.commands.configuring import create as create_queue
    from qworker.wire.keys import QueueKeys

    changes = parse_settings(settings)
    session.client.execute(create_queue(QueueKeys(session.namespace, queue), changes.meta))
    session.client.run(session.ref(queue).announce())
    if as_json:
        print_json({"queue": queue, "created": True, "set": changes.document})
    else:
        print_line(f"created {queue}{': ' if changes.texts else ''}{', '.join(changes.texts)}")


@command.command("set")
@click.argument("queue", type=QUEUE)
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--create", is_flag=True, help="Make the queue if it does not exist.")
@json_option
@click.pass_obj
def set_attributes(
    session: Session, queue: str, settings: tuple[str, ...], create: bool, as_json: bool
) -> None:
    """Set attributes of a queue; the value `default` takes one back.

    \b
      visibility=30s       how long a received message stays invisible (1s to 12h)
      delay=0              how long a sent message waits
      ttl=0                how long a message is worth handling; 0 for ever
      max-receives=5       failures after which a message is dead
      maxlen=0             most messages stored, a full queue refuses; 0 no limit
      maxsize=256KiB       largest body
      journal=off          what became of messages is written down: off, outcomes, all
      journal-cap=64MiB    size of the journal (1MiB to 1TiB); its oldest entries go

    They count for messages that say nothing of their own, from now on.
    """
    from qworker.cli.attributes import parse_settings
    from qworker.client.commands.configuring import configure

    changes = parse_settings(settings)
    if not create:
        session.queue(queue)
    ref = session.ref(queue)
    session.client.run(ref.announce())
    for shard in session.client.run(ref.every_shard(anew=True)):
        session.client.execute(configure(shard.keys, changes.meta))
    if as_json:
        print_json({"queue": queue, "set": changes.document})
    else:
        print_line(f"{queue}: {', '.join(changes.texts)}")


@command.command("peek")
@click.argument("queue", type=QUEUE)
@click.option(
    "--state",
    type=click.Choice(["ready", "delayed", "held", "unacked", "dead"]),
    default="ready",
    help="Look at messages in this state. [default: ready]",
)
@click.option(
    "--count",
    "-n",
    type=click.IntRange(-1000, 1000),
    default=10,
    help="At most so many, a negative number from the other end. [default: 10]",
)
@click.option("--newest", is_flag=True, help="From the other end: the newest first.")
@click.option("--skip", type=click.IntRange(0, 1_000_000), default=0, help="Leave out the first.")
@click.option("--full", is_flag=True, help="Show bodies in full.")
@json_option
@click.pass_obj
def peek(
    session: Session,
    queue: str,
    state: str,
    count: int,
    newest: bool,
    skip: int,
    full: bool,
    as_json: bool,
) -> None:
    """Look at messages without receiving them, in the order of their delivery."""
    from qworker.cli.messages import message_document, print_messages

    found = session.queue(queue).peek(count, state=state, newest=newest, skip=skip)
    if as_json:
        documents = [message_document(each) for each in found]
        print_json({"queue": queue, "state": state, "messages": documents})
    elif not found:
        note(f"{queue} has no {state} message")
    else:
        print_messages(found, session.now_ms(), full=full)


_QUEUES: Final = click.argument("queues", type=QUEUE, nargs=-1, metavar="[QUEUE...]")
_ALL: Final = click.option("--all", "everything", is_flag=True, help="All queues.")


@command.command("pause")
@_QUEUES
@_ALL
@click.option("--in", "incoming", is_flag=True, help="Only refuse what is sent.")
@click.option("--out", "outgoing", is_flag=True, help="Only hand out nothing.")
@click.option("--strict", is_flag=True, help="While input is paused, what times out stays away.")
@click.option("--state", is_flag=True, help="Change nothing, only print what is paused.")
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
    as_json: bool,
) -> None:
    """Pause queues: senders are refused (in), receivers get nothing (out); both unless one is named.

    Messages in hand are settled, timed out and promoted as ever; with --strict what times out comes back after the
    pause only.
    """
    from qworker.cli.pauses import change_pauses, directions

    _check_queues(queues, everything)
    close = frozenset[str]() if state else directions(incoming, outgoing)
    if strict and "in" not in close:
        raise click.UsageError("--strict is for a pause of the input")
    change_pauses(session, queues, strict=strict, close=close, as_json=as_json)


@command.command("resume")
@_QUEUES
@_ALL
@click.option("--in", "incoming", is_flag=True, help="Only accept what is sent.")
@click.option("--out", "outgoing", is_flag=True, help="Only hand out messages.")
@json_option
@click.pass_obj
def resume(
    session: Session,
    queues: tuple[str, ...],
    everything: bool,
    incoming: bool,
    outgoing: bool,
    as_json: bool,
) -> None:
    """End the pause of queues, both ways unless one is named."""
    from qworker.cli.pauses import change_pauses, directions

    _check_queues(queues, everything)
    change_pauses(session, queues, open_=directions(incoming, outgoing), as_json=as_json)


def _check_queues(queues: tuple[str, ...], everything: bool) -> None:
    if bool(queues) == everything:
        raise click.UsageError("give the names of queues, or --all")


@command.command("purge")
@click.argument("queue", type=QUEUE)
@click.option(
    "--state",
    "states",
    type=click.Choice(["ready", "delayed", "dead"]),
    multiple=True,
    help="Delete messages in this state; may be repeated. [default: ready]",
)
@dry_run_option
@yes_option
@json_option
@click.pass_obj
def purge(
    session: Session, queue: str, states: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete all messages of a state. Messages in hand (unacked) are not touched."""
    from itertools import product

    from qworker.cli.confirm import confirm
    from qworker.cli.formats import count
    from qworker.cli.progress import progress
    from qworker.client.commands.removing import purge as purge_some

    found = session.queue(queue)
    inspection = found.inspect()
    sizes = {state: getattr(inspection, state) for state in dict.fromkeys(states or ("ready",))}
    words = " and ".join(f"{count(number)} {state}" for state, number in sizes.items())
    if dry_run:
        _report_purge(
            queue, sizes, as_json, f"would delete {words} of {queue}; nothing was changed"
        )
        return
    if any(sizes.values()):
        confirm(f"Delete {words} of {queue} for ever?", yes=yes)
    purged = dict.fromkeys(sizes, 0)
    with progress(f"purging {queue}", sum(sizes.values())) as advance:
        for shard, state in product(session.client.run(found.ref.every_shard()), sizes):
            while True:
                done = session.client.execute(purge_some(shard.keys, state))
                purged[state] += done.messages
                advance(done.messages)
                if not done.more:
                    break
    words = " and ".join(f"{count(number)} {state}" for state, number in purged.items())
    _report_purge(queue, purged, as_json, f"deleted {words} of {queue}")


@command.command("rm")
@click.argument("queue", type=QUEUE)
@dry_run_option
@yes_option
@json_option
@click.pass_obj
def remove(session: Session, queue: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete a queue with its messages (those in hand and dead letters too), attributes and counters."""
    from qworker.cli.confirm import confirm
    from qworker.cli.formats import count
    from qworker.cli.presence import read_workers

    found = session.queue(queue)
    sizes = found.inspect()
    states = {state: getattr(sizes, state) for state in ("ready", "delayed", "unacked", "dead")}
    words = ", ".join(f"{count(number)} {state}" for state, number in states.items())
    if dry_run:
        text = f"would remove {queue} with {words}; nothing was changed"
    else:
        listening = [each.name for each in read_workers(session) if each.listens_to(queue)]
        if listening:
            note(f"workers that still take from it: {', '.join(listening[:5])}")
        confirm(f"Remove {queue} with {words}, its attributes and counters, for ever?", yes=yes)
        found.remove()
        text = f"removed {queue} with {words}"
    if as_json:
        print_json({"queue": queue, "removed": not dry_run, "messages": states})
    else:
        print_line(text)


for _verb in (*queue_looks.VERBS, shards):
    command.add_command(_verb)


def _report_purge(queue: str, numbers: dict[str, int], as_json: bool, text: str) -> None:
    if as_json:
        print_json({"queue": queue, "deleted": numbers, "dry_run": text.startswith("would")})
    else:
        print_line(text)


def _seconds(duration: str) -> float:
    from qworker.durations import duration_ms

    return duration_ms(duration, "--over") / 1000
