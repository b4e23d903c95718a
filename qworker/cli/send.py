"""`qworker send`: messages from an argument, a task call, a file or a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.flags import flags_of
from qworker.cli.formats import count, span
from qworker.cli.parameters import QUEUE
from qworker.cli.screen import note, print_json, print_line
from qworker.cli.verbs import Verb, json_option
from qworker.client.options import SendOptions

if TYPE_CHECKING:
    from qworker.cli.session import Session
    from qworker.cli.sources import Bodies
    from qworker.client.commands.sending import NewMessage
    from qworker.client.queue_ref import QueueRef

__all__ = ["command"]

#: A call holds at most so many messages and (but for a single larger one) bytes: it is atomic, and blocks the server.
_CALL_MESSAGES: Final = 1000
_CALL_BYTES: Final = 4 * 1024 * 1024
_LISTED_IDS: Final = 1000


@dataclass(slots=True)
class _Account:
    """What was sent so far. `ids` are kept for up to 1,000 messages."""

    sent: int = 0
    duplicates: int = 0
    first_id: str = ""
    last_id: str = ""
    ids: list[str] = field(default_factory=list)

    def add(self, messages: list[NewMessage], ids: list[str]) -> None:
        self.sent += len(ids)
        self.duplicates += sum(
            message.id != stored for message, stored in zip(messages, ids, strict=True)
        )
        self.first_id = self.first_id or ids[0]
        self.last_id = ids[-1]
        if self.sent <= _LISTED_IDS:
            self.ids += ids


@click.command(cls=Verb)
@click.argument("queue", type=QUEUE)
@click.argument("body", required=False)
@click.option("--file", metavar="FILE", help="Take the body from a file, byte for byte.")
@click.option("--lines", is_flag=True, help="Every line that is not empty is a message.")
@click.option("--task", metavar="NAME", help="Call this task; its arguments follow as JSON.")
@click.option("--arg", "args", multiple=True, metavar="JSON", help="Next argument; repeatable.")
@click.option(
    "--kwarg", "kwargs", multiple=True, metavar="NAME=JSON", help="Named argument; repeatable."
)
@click.option(
    "--count",
    "times",
    type=click.IntRange(1, 10_000_000),
    default=1,
    metavar="N",
    help="Send the same message N times.",
)
@flags_of(SendOptions, without=["eta"])
@json_option
@click.pass_obj
def command(
    session: Session, /, queue: str, given: dict[str, str], as_json: bool, **source: Any
) -> None:
    """Send messages to QUEUE, which comes to be by its first one. Prints the id.

    BODY is the body, usually JSON in single quotes; `-`, or nothing in a pipe, reads it from the standard input.
    What is sent in one call (up to 1,000 messages) is stored whole or not at all; --lines and --file are checked to
    the end before the first call.

    \b
      qworker send emails --task send_email --arg '"a@b.c"' --kwarg 'urgent=true'
      qworker send orders '{"id": 17}' --delay 10m --priority 5
      qworker send events --lines --file events.ndjson
    """
    import time

    from qworker.cli.sources import Source, open_bodies

    options, wanted = _options(given), Source(**source)
    wanted.check(unique=options.unique is not None)
    ref, maxsize = session.ref(queue), _maxsize(session, queue)
    account, started = _Account(), time.monotonic()
    with open_bodies(wanted, maxsize) as bodies:
        if bodies.total:
            _note_first(session, queue, bodies)
        if wanted.task is not None:
            _note_task(session, queue, wanted.task)
        _send(session, ref, bodies, options, account)
    _report(queue, account, time.monotonic() - started, as_json)


def _options(given: dict[str, str]) -> SendOptions:
    from qworker.config.fields import kinds_of

    kinds = kinds_of(SendOptions)
    return SendOptions(
        **{
            name: kinds[name].parse(text, f"--{name.replace('_', '-')}")
            for name, text in given.items()
        }
    )


def _maxsize(session: Session, queue: str) -> int:
    """The queue's limit for bodies, in bytes. Raises `BrokenQueueError`."""
    from qworker.cli.attributes import read_attributes
    from qworker.client.commands.inspecting import inspect
    from qworker.wire.keys import QueueKeys

    meta = session.client.execute(inspect(QueueKeys(session.namespace, queue))).meta
    limits = {each.name: each.value for each in read_attributes(meta)}
    return int(limits["maxsize"])


def _note_first(session: Session, queue: str, bodies: Bodies) -> None:
    """Say what may not be meant: a queue that is new, a body that no task can take."""
    from qworker.errors import InvalidBodyError
    from qworker.wire.codec import decode

    if not session.has_queue(queue):
        near = session.near_queue(queue)
        note(f"note: queue {queue!r} is new" + (f"; did you mean {near!r}?" if near else ""))
    try:
        decode(bodies.first)
    except InvalidBodyError:
        note("note: the body is not JSON, so no task can take it (only a receiver of raw bytes)")


def _note_task(session: Session, queue: str, task: str) -> None:
    """Say where the workers of the queue do not know the task, and which one may be meant.

    Not an error: the worker that has it may be on its way.
    """
    from difflib import get_close_matches

    from qworker.cli.presence import read_workers

    workers = [each for each in read_workers(session) if each.listens_to(queue)]
    told = [each.tasks for each in workers]
    if not workers or None in told:
        why = (
            f"a worker of {queue!r} does not tell its tasks"
            if workers
            else f"no worker takes from {queue!r} now"
        )
        note(f"note: {why}, so nobody could say whether there is a task {task!r}")
        return
    known = sorted({name for names in told for name in names or ()})
    if task not in known:
        near = get_close_matches(task, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"they have {', '.join(known[:8])}"
        note(f"note: no worker of {queue!r} has a task {task!r}; {hint}")


def _send(
    session: Session,
    queue: QueueRef,
    bodies: Bodies,
    options: SendOptions,
    account: _Account,
) -> None:
    from qworker.cli.progress import progress
    from qworker.client.sending import new_message, store

    try:
        with progress(f"sending to {queue.keys.queue}", bodies.total) as advance:
            for chunk in _chunks(bodies):
                messages = [new_message(queue, each, options) for each in chunk]
                account.add(messages, session.client.run(store(queue, messages, options)))
                advance(len(chunk))
    except BaseException:
        if bodies.total > 1:
            note(
                f"{count(account.sent)} of {count(bodies.total)} messages were sent, in order; "
                "what follows was not"
            )
        raise


def _chunks(bodies: Bodies) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for body in bodies:
        if chunk and (len(chunk) == _CALL_MESSAGES or size + len(body) > _CALL_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(body)
        size += len(body)
    if chunk:
        yield chunk


def _report(queue: str, account: _Account, seconds: float, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "queue": queue,
                "sent": account.sent - account.duplicates,
                "duplicates": account.duplicates,
                "first_id": account.first_id or None,
                "last_id": account.last_id or None,
                "ids": account.ids if account.sent <= _LISTED_IDS else None,
            }
        )
        return
    if account.duplicates:
        note("nothing was sent: this message holds the unique key")
    if account.sent == 1:
        print_line(account.first_id)
    else:
        print_line(
            f"sent {count(account.sent, 'message')} to {queue} in {span(seconds)}"
            + (f", ids {account.first_id} to {account.last_id}" if account.sent else "")
        )
