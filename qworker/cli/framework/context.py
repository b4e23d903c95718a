"""What a verb works with: settings, the server and its queues, each opened when it is first asked for."""

from __future__ import annotations

import dataclasses
import math
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.errors import FAILED
from qworker.cli.framework.queues import Queues
from qworker.cli.framework.settings import REDIS_URL, Settings
from qworker.cli.framework.terminal import note

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.client.namespace.workers import Worker
    from qworker.store.nodes import Address
    from qworker.store.options import ClientOptions
    from qworker.store.url import ServerURL

__all__ = ["Session"]

#: Seconds after which a note says that the server does not answer.
_PATIENCE_S: Final = 3.0
#: The same for a node of a Cluster, if the verb shows what the others know: many times what a busy one takes.
_NODE_PATIENCE_S: Final = 1.5


class Session:
    """One command line: its settings, its server, and the queues there."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.queues = Queues(self.settings, lambda: self.client)
        #: Seconds after which a call that cannot be made is given up; read when the client is made.
        self.patience_s = _PATIENCE_S
        #: Whether to wait only once for a node of a Cluster that does not serve; read when the client is made.
        self.waits_once = False
        #: Whether the client is for a screen, which looks again and again; read when the client is made.
        self.watches = False

    @property
    def namespace(self) -> str:
        """The namespace, checked."""
        return self.settings.namespace

    @cached_property
    def url(self) -> ServerURL:
        """The URL of the server, or `embedded:` with its directory; nothing is started.

        One line on stderr says where an embedded store is. Raises `InvalidOptionError` if no server is named.
        """
        from qworker.errors import InvalidOptionError

        settings = self.settings
        url = settings.client.options.url
        source = settings.client.settings["url"].source
        if settings.embedded and source == "--url" and url is not None and url.scheme != "embedded":
            raise InvalidOptionError("--embedded", "excludes --url", "pass one of them")
        if url is not None and not settings.embedded and url.scheme != "embedded":
            if source == REDIS_URL:
                note(f"QWORKER_URL is not set: using {REDIS_URL}")
            elif source == "--url" and url.password:
                note(
                    "warning: every user of this host can read the password in --url; use QWORKER_URL"
                )
            return url
        # Half of the package, and a Redis client.
        from qworker.store.embedded.store import choose_url
        from qworker.store.url import ServerURL

        chosen, line = choose_url(
            None if url is None else str(url),
            embedded=settings.embedded,
            stderr_is_terminal=sys.stderr.isatty(),
        )
        if line is not None:
            note(line)
        return ServerURL.parse(chosen)

    @cached_property
    def server(self) -> ServerURL:
        """The URL to connect to; starts the embedded store if the URL names one."""
        url = self.url
        if url.scheme != "embedded":
            return url
        from qworker.store.embedded.store import resolve_url
        from qworker.store.url import ServerURL

        return ServerURL.parse(resolve_url(str(url)))

    @cached_property
    def client(self) -> Client:
        """The client of the server; it gives up after `patience_s`, or as `--give-up` and its like say."""
        from qworker.client.execute.sync import Client
        from qworker.store.connections import ConnectionFactory

        self.settings.set_up_logs()
        made = Client
        if self.waits_once or self.watches:
            from qworker.client.execute.single_wait import SingleWaitClient, WatchingClient

            made = WatchingClient if self.watches else SingleWaitClient
        return made(
            ConnectionFactory(self.server, name="qworker-cli"),
            give_up_s=self._give_up_s,
            keyring=self.settings.keyring,
        )

    @property
    def _give_up_s(self) -> float:
        """The patience of the verb if it sets one, else the option, else a few seconds: a user is waiting."""
        loaded = self.settings.client
        if self.patience_s != _PATIENCE_S or loaded.settings["give_up"].source == "default":
            at_most_s = _NODE_PATIENCE_S if self.waits_once and self.server.clustered else math.inf
            return min(self.patience_s, at_most_s)
        return loaded.options.give_up_ms / 1000

    def service_options(self) -> ClientOptions:
        """Return the client options of a service, with the URL to connect to; the service sets up its logs itself.

        An embedded store that has to be started has them set up before.
        """
        if self.url.scheme == "embedded":
            self.settings.set_up_logs(service=True)
        return dataclasses.replace(self.settings.client.options, url=self.server)

    def check_complete(self) -> None:
        """End the command with exit code 1 if a node of the Cluster did not answer, and name it."""
        from qworker.client.execute.single_wait import SingleWaitClient

        client = self.client
        if isinstance(client, SingleWaitClient) and client.away:
            for node, error in client.away.items():
                note(f"not read: what {node} holds ({error})")
            raise click.exceptions.Exit(FAILED)

    def workers(self, now_ms: int | None = None) -> list[Worker] | None:
        """Read the workers; None, and a note, if the node of a Cluster that lists them does not answer."""
        from qworker.client.namespace.workers import read_workers
        from qworker.errors import InDoubtError, LoadingError, UnavailableError

        try:
            return read_workers(self, now_ms)
        except (UnavailableError, InDoubtError, LoadingError) as error:
            if not self.client.factory.clustered:
                raise
            note(f"the list of workers cannot be read: {error}")
            return None

    def ask(self, *words: str | int | bytes, node: Address | None = None) -> Any:
        """Send one plain command, in a Cluster to one node; returns its reply."""
        return self.client.ask(*words, node=node)

    def note(self, verb: str, key: str, *words: str | int | bytes) -> Any:
        """Send one plain command that a full server takes too; returns its reply."""
        return self.client.note(verb, key, *words)

    def now_ms(self) -> int:
        """Read the server's clock."""
        return self.client.now_ms()

    def close(self) -> None:
        """Close the client, if there is one."""
        if "client" in self.__dict__:
            self.client.close()
