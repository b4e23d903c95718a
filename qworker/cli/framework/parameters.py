"""Parameter types of the command line: names that the shell can complete, durations and rates."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.context import Session

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["DURATION", "QUEUE", "NumberRange", "queue_option", "rate_option"]

#: Seconds that a shell waits for the names of queues; then it gets none.
_COMPLETION_S: Final = 0.3


class _QueueName(click.ParamType[str]):
    """The name of a queue, or of a shard of one, checked; the shell completes it from the index."""

    name = "queue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from qworker.wire.names import check_queue_or_shard

        return check_queue_or_shard(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        session = ctx.ensure_object(Session)
        return [
            CompletionItem(name) for name in _names_in_time(session) if name.startswith(incomplete)
        ]


class _DurationText(click.ParamType[str]):
    """A duration with its unit, such as 30s, checked."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from qworker.config.kinds import DurationKind

        field = param.opts[0] if isinstance(param, click.Option) else self.name.upper()
        text: str = DurationKind("", zero="none").parse(value, field)
        return text


class NumberRange(click.IntRange):
    """An integer within bounds, which the help and the errors write as words."""

    name = "n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the number; a usage error says what is accepted."""
        try:
            number = int(value)
        except ValueError:
            self.fail(f"'{value}' is not a whole number; give {self._describe_range()}", param, ctx)
        if not (self.min or 0) <= number <= (number if self.max is None else self.max):
            self.fail(f"{number} is out of range; give {self._describe_range()}", param, ctx)
        return number

    def _describe_range(self) -> str:
        if self.max is None:
            return f"{self.min} or more"
        return f"{self.min} to {self.max}"


class _RatePerSecond(click.ParamType[float]):
    """A rate such as 100/s or 50/m, as a number per second."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from qworker.client.dead.throttle import rate_per_s

        return rate_per_s(value, "--rate")


QUEUE: Final = _QueueName()
DURATION: Final = _DurationText()


def queue_option(text: str) -> Callable[..., Any]:
    """Add --queue, the one queue of a command that otherwise searches all; `text` is its help."""
    return click.option("--queue", type=QUEUE, help=text)


def rate_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --rate, as `rate`: dead letters per second, None for no limit."""
    text = "Maximum rate: 100/s, 50/m, 1000/h."
    return click.option("--rate", type=_RatePerSecond(), metavar="RATE", help=text)(function)


def _names_in_time(session: Session) -> list[str]:
    # Imported before the clock starts: on a busy machine that alone takes longer than a server may.
    import qworker.client.execute.sync
    import qworker.client.namespace.queues
    import qworker.store.embedded.store  # noqa: F401

    names: list[str] = []

    def read() -> None:
        try:
            names.extend(_names(session))
        except Exception:  # noqa: BLE001  completion cannot show an error
            return

    # A thread, as there is no other way to bound the time of a name lookup.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(_COMPLETION_S)
    return sorted(names)


def _names(session: Session) -> list[str]:
    """Read the names over its own connection, which is impatient and starts no embedded store.

    Names in the index are checked first: bash would run a `$(…)` that it completes.
    """
    from qworker.client.execute.sync import call
    from qworker.client.namespace.queues import named
    from qworker.client.plan import run_plan
    from qworker.store.connections import ConnectionFactory
    from qworker.store.embedded.store import Store, default_directory
    from qworker.wire.keys import queues_key

    options = session.settings.client.options
    url = options.url
    if url is None or url.scheme == "embedded":
        directory = url.path if url is not None else None
        store = Store(directory or default_directory())
        store.check()
        server: Any = store.url
    else:
        server = url
    factory = ConnectionFactory(
        server, connect_timeout_s=_COMPLETION_S, reply_timeout_s=_COMPLETION_S
    )
    connection: Any = factory.connect(queues_key(options.namespace))
    try:
        # The index alone: in a Cluster this connection leads to its node, and to no other.
        return sorted(
            run_plan(lambda asked: asked.decode(call(connection, asked)), named(options.namespace))
        )
    finally:
        connection.disconnect()
