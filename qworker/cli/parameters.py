"""Parameter types of the command line: names that the shell can complete, and durations."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.session import Session

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["DURATION", "QUEUE"]

#: What a shell waits for a server to name its queues, in seconds; then it gets none.
_COMPLETION_S: Final = 0.3


class _QueueName(click.ParamType[str]):
    """The name of a queue, or of a shard of one, checked; the shell completes it from the server's registry."""

    name = "queue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from qworker.wire.names import check_place

        return check_place(value)

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


QUEUE: Final = _QueueName()
DURATION: Final = _DurationText()


def _names_in_time(session: Session) -> list[str]:
    # Not part of the time: importing takes as long as the machine is busy, and no server has a share in it.
    import qworker.client.sync
    import qworker.store.embedded  # noqa: F401

    found: list[str] = []

    def read() -> None:
        try:
            found.extend(_names(session))
        except Exception:  # noqa: BLE001  a shell that completes a word has no room for an error
            return

    # A thread: nothing bounds the time that a host name takes to be resolved.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(_COMPLETION_S)
    return sorted(found)


def _names(session: Session) -> list[str]:
    """Read the names over a connection of its own, that is impatient and starts no embedded store.

    What producers wrote into the registry is checked first: bash would run a `$(…)` that it completes.
    """
    from qworker.client.plan import run_plan
    from qworker.client.registry import named
    from qworker.client.sync import call
    from qworker.store.connection import ConnectionFactory
    from qworker.store.embedded import Store, default_directory
    from qworker.wire.keys import queues_key

    options = session.connection_settings.options
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
