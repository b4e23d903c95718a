"""`qworker send`: messages from an argument, a task call, a file or a pipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.chunks import chunks
from qworker.cli.framework.commands import VerbCommand, json_option
from qworker.cli.framework.flags import flags_of
from qworker.cli.framework.output import Note, Output
from qworker.cli.framework.parameters import QUEUE, NumberRange
from qworker.cli.framework.suggestions import did_you_mean
from qworker.cli.framework.terminal import note
from qworker.client.send import SendOptions
from qworker.formats import count, span

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.cli.send.sources import Bodies
    from qworker.client.queue_ref import QueueRef
    from qworker.client.send import NewMessage

__all__ = ["command"]

#: Maximum of a call, which is atomic and blocks the server; a single message may be larger.
_CALL_MESSAGES: Final = 1000
_CALL_BYTES: Final = 4 * 1024 * 1024
_LISTED_IDS: Final = 1000


@dataclass(slots=True)
class _Sent:
    """The messages that were sent so far. `ids` are kept for up to 1,000."""

    number: int = 0
    duplicates: int = 0
    first_id: str = ""
    last_id: str = ""
    ids: list[str] = field(default_factory=list)

    def add(self, messages: list[NewMessage], ids: list[str]) -> None:
        self.number += len(ids)
        self.duplicates += sum(
            message.id != stored for message, stored in zip(messages, ids, strict=True)
        )
        self.first_id = self.first_id or ids[0]
        self.last_id = ids[-1]
        if self.number <= _LISTED_IDS:
            self.ids += ids


@click.command(cls=VerbCommand)
@click.argument("queue", type=QUEUE)
@click.argument("body", required=False)
@click.option("--file", metavar="FILE", help="Read the body from a file, byte for byte.")
@click.option("--lines", is_flag=True, help="Send each non-empty line as a message.")
@click.option("--task", metavar="NAME", help="Call this task, with --arg and --kwarg.")
@click.option(
    "--arg", "args", multiple=True, metavar="JSON", help="Positional argument; repeatable."
)
@click.option(
    "--kwarg", "kwargs", multiple=True, metavar="NAME=JSON", help="Keyword argument; repeatable."
)
@click.option(
    "--count",
    "times",
    type=NumberRange(1, 10_000_000),
    default=1,
    metavar="N",
    help="Send the same message N times.",
)
@flags_of(SendOptions, without=["eta"])
@json_option
@click.pass_obj
def command(session: Session, /, queue: str, given: dict[str, str | bool], **source: Any) -> Output:
    """Send messages to QUEUE, which is created by its first one. Prints the message id.

    BODY is usually JSON in single quotes; `-`, or no BODY in a pipe, reads standard input. Each call to the server
    stores its messages, up to 1,000, or none of them; --lines and --file are checked to the end before the first call.

    \b
      qworker send emails --task send_email --arg '"a@b.c"' --kwarg 'urgent=true'
      qworker send orders '{"id": 17}' --delay 10m --priority 5
      qworker send events --lines --file events.ndjson
    """
    import time

    from qworker.cli.send.sources import BodyOptions, open_bodies

    options, wanted = _options(given), BodyOptions(**source)
    wanted.check(unique=options.unique is not None)
    ref = session.queues.ref(queue)
    sent, started = _Sent(), time.monotonic()
    with open_bodies(wanted, _maxsize(session, ref)) as bodies:
        if bodies.total:
            _note_first(session, queue, bodies)
        if wanted.task is not None:
            _note_task(session, queue, wanted.task)
        _send(session, ref, bodies, options, sent)
    return _output(queue, sent, time.monotonic() - started)


def _options(given: dict[str, str | bool]) -> SendOptions:
    from qworker.config.fields import kinds_of

    kinds, checked = kinds_of(SendOptions), dict[str, Any]()
    for name, value in given.items():
        kind, flag = kinds[name], f"--{name.replace('_', '-')}"
        checked[name] = (
            kind.parse(value, flag) if isinstance(value, str) else kind.check(value, flag)
        )
    return SendOptions(**checked)


def _maxsize(session: Session, queue: QueueRef) -> int:
    """Read the queue's limit for bodies, in bytes. Raises `BrokenQueueError`."""
    from qworker.client.inspect.peek import inspect
    from qworker.client.manage.attribute_text import read_attributes

    attributes = read_attributes(session.client.run(inspect(queue)).meta)
    return next(int(one.value) for one in attributes if one.name == "maxsize")


def _note_first(session: Session, queue: str, bodies: Bodies) -> None:
    """Note likely mistakes: a new queue, a body that no task can take."""
    from qworker.errors import InvalidBodyError
    from qworker.wire.codec import decode

    session.queues.note_if_new(queue)
    try:
        decode(bodies.first)
    except InvalidBodyError:
        note("note: the body is not JSON: only receivers of raw bytes can take it, tasks cannot")


def _note_task(session: Session, queue: str, task: str) -> None:
    """Note if the workers of the queue do not know the task, and suggest one that they know.

    Not an error: a worker that has it may start later.
    """
    found = session.workers()
    if found is None:
        note(f"note: task {task!r} was not checked")
        return
    workers = [worker for worker in found if worker.listens_to(queue)]
    tasks = [worker.described.tasks for worker in workers]
    if not workers or None in tasks:
        why = (
            f"a worker of {queue!r} does not report its tasks"
            if workers
            else f"no worker receives from {queue!r} now"
        )
        note(f"note: {why}, so task {task!r} was not checked")
        return
    known = sorted({name for names in tasks for name in names or ()})
    if task not in known:
        hint = did_you_mean(task, known, f"they have {', '.join(known[:8])}")
        note(f"note: no worker of {queue!r} has a task {task!r}; {hint}")


def _send(
    session: Session,
    queue: QueueRef,
    bodies: Bodies,
    options: SendOptions,
    sent: _Sent,
) -> None:
    from qworker.cli.framework.progress import progress
    from qworker.client.new_message import new_message
    from qworker.client.send import store

    try:
        with progress(f"sending to {queue.keys.queue}", bodies.total) as advance:
            for chunk in chunks(bodies, len, most_bytes=_CALL_BYTES, most=_CALL_MESSAGES):
                messages = [new_message(queue, body, options) for body in chunk]
                sent.add(messages, session.client.run(store(queue, messages, options)))
                advance(len(chunk))
    except BaseException:
        if bodies.total > 1:
            note(
                f"{count(sent.number)} of {count(bodies.total)} messages were sent, in order; "
                "the rest was not"
            )
        raise


def _output(queue: str, sent: _Sent, seconds: float) -> Output:
    document = {
        "queue": queue,
        "sent": sent.number - sent.duplicates,
        "duplicates": sent.duplicates,
        "first_id": sent.first_id or None,
        "last_id": sent.last_id or None,
        "ids": sent.ids if sent.number <= _LISTED_IDS else None,
    }
    text = sent.first_id
    if sent.number != 1:
        text = f"sent {count(sent.number, 'message')} to {queue} in {span(seconds)}"
        text += f", ids {sent.first_id} to {sent.last_id}" if sent.number else ""
    refused = Note("nothing was sent: this message already holds the unique key")
    return Output(document, [refused, text] if sent.duplicates else text)
