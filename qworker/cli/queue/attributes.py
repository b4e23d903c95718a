"""`qworker queue` create and set: the attributes of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from qworker.cli.framework.commands import VerbCommand, json_option
from qworker.cli.framework.output import Output
from qworker.cli.framework.parameters import QUEUE

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session

__all__ = ["VERBS"]


class AttributesVerb(VerbCommand):
    """A verb that takes attributes as KEY=VALUE, and explains that if they are given as options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words of the command. Raises `click.UsageError`."""
        words = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise _as_attribute(error, words) or error from None


def _as_attribute(error: click.NoSuchOption, words: list[str]) -> click.UsageError | None:
    """Return the error for an option that is an attribute; None if there is no such attribute."""
    from qworker.client.manage.attribute_text import is_attribute

    name = error.option_name.lstrip("-")
    if not is_attribute(name):
        return None
    _, _, value = next(word for word in words if word.startswith(error.option_name)).partition("=")
    if not value:
        following = words[words.index(error.option_name) + 1 :]
        value = next((word for word in following[:1] if not word.startswith("-")), "VALUE")
    return click.UsageError(
        f"no such option '{error.option_name}': {name} is an attribute, write {name}={value}",
        error.ctx,
    )


@click.command("create", cls=AttributesVerb)
@click.argument("queue", type=QUEUE)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@json_option
@click.pass_obj
def create(session: Session, queue: str, settings: tuple[str, ...]) -> Output:
    """Create a queue, with attributes as in `queue set`.

    This is optional: a queue is created by its first message.
    """
    from qworker.client.manage.attribute_text import parse_settings
    from qworker.client.manage.attributes import create_stored

    changes = parse_settings(settings)
    session.client.run(create_stored(session.queues.ref(queue), changes.meta))
    return Output(
        {"queue": queue, "created": True, "set": changes.document},
        f"created {queue}{': ' if changes.texts else ''}{', '.join(changes.texts)}",
    )


@click.command("set", cls=AttributesVerb)
@click.argument("queue", type=QUEUE)
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--create", is_flag=True, help="Create the queue if it does not exist.")
@json_option
@click.pass_obj
def set_attributes(session: Session, queue: str, settings: tuple[str, ...], create: bool) -> Output:
    """Set attributes of a queue; the value `default` resets one.

    \b
      visibility=30s       how long a received message stays invisible (1s to 12h)
      delay=0              how long a sent message waits before it is ready
      ttl=0                how long a message lives; 0: forever
      max-receives=5       failures after which a message is dead
      maxlen=0             maximum number of stored messages; 0: no limit
      maxsize=256KiB       maximum size of a body
      journal=off          events that are recorded: off, outcomes, all
      journal-cap=64MiB    maximum size of the journal (1MiB to 1TiB)

    They apply from now on, to messages without their own value. A full queue refuses sends; a full journal drops
    its oldest entries.
    """
    from qworker.client.manage.attribute_text import parse_settings
    from qworker.client.manage.attributes import write_stored

    changes = parse_settings(settings)
    if not create:
        session.queues.get(queue)
    session.client.run(write_stored(session.queues.ref(queue), changes.meta))
    return Output({"queue": queue, "set": changes.document}, f"{queue}: {', '.join(changes.texts)}")


VERBS: Final = (create, set_attributes)
