"""What a verb works with: the configuration and the server, each opened when it is first asked for."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from qworker.cli.screen import note

if TYPE_CHECKING:
    from qworker.client.commands.inspecting import Inspection
    from qworker.client.queue import Queue
    from qworker.client.queue_ref import QueueRef
    from qworker.client.sync import Client
    from qworker.config.fields import Options
    from qworker.config.files import ConfigFile
    from qworker.config.loading import Loaded
    from qworker.errors import BrokenQueueError, InvalidError
    from qworker.store.nodes import Address
    from qworker.store.options import ClientOptions
    from qworker.store.url import ServerURL
    from qworker.wire.keyring import Keyring
    from qworker.wire.shards import Shards

    T = TypeVar("T", bound=Options)

__all__ = ["Session"]

#: Seconds after which an operator is told that the server does not answer.
_PATIENCE_S: Final = 3.0
_LISTED: Final = 8
_REDIS_URL: Final = "REDIS_URL"
#: SCANs of 1,000 keys that a look for other namespaces takes at most.
_SCANS: Final = 100
#: And that a walk for queues takes on a node where the index is of no use.
_WALKED: Final = 2000


class Session:
    """The global options of one command line, and what they lead to."""

    def __init__(self) -> None:
        self._given: dict[str, Any] = {}
        #: How the queues are divided that `queues` has named.
        self._shards: dict[str, Shards] = {}
        #: Seconds after which a call that cannot be made is given up; read when the client is made.
        self.patience_s = _PATIENCE_S

    def give(self, name: str, value: Any) -> None:
        """Take a global option of the command line."""
        self._given[name] = value

    # -- configuration -------------------------------------------------------------------------

    @cached_property
    def file(self) -> ConfigFile:
        """The configuration file, its keys checked; its warnings are shown when it is read."""
        from qworker.cli.options import OPTION_CLASSES
        from qworker.config.files import read_file
        from qworker.config.loading import check_keys

        named = self._given.get("config")
        file = read_file(Path.cwd(), Path(named) if named else None)
        for warning in file.warnings:
            note(f"warning: {warning}")
        check_keys(file, OPTION_CLASSES)
        return file

    def load(self, options: type[T], given: Mapping[str, object] | None = None) -> Loaded[T]:
        """Load an options class from the global options, `given`, the environment and the file."""
        from qworker.config.loading import load

        return load(
            options, given={**self._given, **(given or {})}, environ=os.environ, file=self.file
        )

    @cached_property
    def connection_settings(self) -> Loaded[ClientOptions]:
        """The client options; the URL is that of REDIS_URL where nothing else names one.

        An app goes by REDIS_URL as well: looking elsewhere than it does would show empty queues.
        """
        from qworker.config.loading import Loaded, Setting
        from qworker.store.options import ClientOptions
        from qworker.store.url import ServerURL

        loaded = self.load(ClientOptions)
        if loaded.options.url is not None or not os.environ.get(_REDIS_URL):
            return loaded
        url = ServerURL.parse(os.environ[_REDIS_URL], _REDIS_URL)
        settings = {**loaded.settings, "url": Setting(str(url), _REDIS_URL)}
        return Loaded(dataclasses.replace(loaded.options, url=url), settings)

    @cached_property
    def namespace(self) -> str:
        """The namespace, checked."""
        return self.connection_settings.options.namespace

    @cached_property
    def url(self) -> ServerURL:
        """The URL of the server, or `embedded:` with its directory; nothing is started.

        One line on stderr tells where an embedded store is. Raises `InvalidOptionError` where no server is named.
        """
        from qworker.errors import InvalidOptionError
        from qworker.store.embedded import choose_url
        from qworker.store.url import ServerURL

        url = self.connection_settings.options.url
        source = self.connection_settings.settings["url"].source
        embedded = bool(self._given.get("embedded"))
        if embedded and source == "--url" and url is not None and url.scheme != "embedded":
            raise InvalidOptionError("--embedded", "is given beside --url", "give one of the two")
        if url is not None and not embedded and url.scheme != "embedded":
            if source == _REDIS_URL:
                note(f"QWORKER_URL is not set: using {_REDIS_URL}")
            elif source == "--url" and url.password:
                note(
                    "warning: every user of this host can read the password in --url; use QWORKER_URL"
                )
            return url
        chosen, line = choose_url(
            None if url is None else str(url),
            embedded=embedded,
            stderr_is_terminal=sys.stderr.isatty(),
        )
        if line is not None:
            note(line)
        return ServerURL.parse(chosen)

    def set_up_logs(self, *, service: bool = False) -> None:
        """Set up the logs: from `info` on for a service, from `warning` on beside the output of other verbs."""
        from qworker.telemetry.logs import configure_logs
        from qworker.telemetry.options import LogOptions

        loaded = self.load(LogOptions)
        quiet = not service and loaded.settings["log_level"].source == "default"
        configure_logs(loaded.options.log_format, "warning" if quiet else loaded.options.log_level)

    # -- server --------------------------------------------------------------------------------

    @cached_property
    def server(self) -> ServerURL:
        """The URL to connect to; starts the embedded store if that is what the URL names."""
        from qworker.store.embedded import resolve_url
        from qworker.store.url import ServerURL

        url = self.url
        if url.scheme != "embedded":
            return url
        return ServerURL.parse(resolve_url(str(url)))

    @cached_property
    def client(self) -> Client:
        """The client of the server; it gives up after `patience_s`, or as `--give-up` and its like say."""
        from qworker.client.sync import Client
        from qworker.store.connection import ConnectionFactory

        self.set_up_logs()
        return Client(
            ConnectionFactory(self.server, name="qworker-cli"),
            give_up_s=self._give_up_s,
            keyring=self.keyring,
        )

    @property
    def _give_up_s(self) -> float:
        """The patience of a verb that has its own, else what is set, else a few seconds: somebody sits there."""
        loaded = self.connection_settings
        if self.patience_s != _PATIENCE_S or loaded.settings["give_up"].source == "default":
            return self.patience_s
        return loaded.options.give_up_ms / 1000

    @cached_property
    def keyring(self) -> Keyring:
        """The keys of the environment or of the file that the configuration names; an empty ring without."""
        from qworker.wire.key_options import KeyOptions, keyring_of

        return keyring_of(self.load(KeyOptions).options)

    def pass_give_up_on(self) -> None:
        """Let the app find in the environment how long its calls are tried, where that was set elsewhere."""
        loaded = self.connection_settings
        if loaded.settings["give_up"].source != "default":
            os.environ["QWORKER_GIVE_UP"] = loaded.settings["give_up"].value

    def pass_keys_on(self) -> None:
        """Let child processes find the keys where this one has found them: apps look into the environment only."""
        from qworker.wire.key_options import KeyOptions

        loaded = self.load(KeyOptions).options
        if self.keyring and loaded.keys_file is not None:
            os.environ["QWORKER_KEYS_FILE"] = str(Path(loaded.keys_file).absolute())
            os.environ["QWORKER_SIGNATURES"] = loaded.signatures

    def service_options(self) -> ClientOptions:
        """The client options for a service, with the URL to connect to; sets up the logs of a service."""
        self.set_up_logs(service=True)
        return dataclasses.replace(self.connection_settings.options, url=self.server)

    def close(self) -> None:
        """Close the client, if there is one."""
        if "client" in self.__dict__:
            self.client.close()

    def ask(self, *words: str | int | bytes, node: Address | None = None) -> Any:
        """Send one plain command, in a Cluster to one node; returns its reply."""
        from qworker.client.commands.command import Command

        return self.client.execute(Command(None, (), words, lambda reply: reply, node=node))

    def now_ms(self) -> int:
        """Read the server's clock."""
        seconds, microseconds = self.ask("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    def other_namespaces(self) -> list[str]:
        """Name other namespaces that have queues on the server, as far as a bounded look through its keys shows."""
        from qworker.errors import ServerError

        found = set()
        try:
            for node in self.client.factory.masters():
                cursor = b"0"
                for _ in range(_SCANS):
                    words = ("SCAN", cursor, "MATCH", "*:queues", "COUNT", 1000)
                    cursor, keys = self.ask(*words, node=node)
                    found |= {
                        key.decode("utf-8", "replace").removesuffix(":queues") for key in keys
                    }
                    if cursor == b"0":
                        break
        except ServerError:
            return []  # SCAN is forbidden: nothing to tell.
        return sorted(name for name in found if _is_namespace(name) and name != self.namespace)

    # -- queues --------------------------------------------------------------------------------

    def queues(self) -> list[str]:
        """Name the queues of which there are keys, sorted: by the index, or by a walk where that is of no use."""
        from qworker.client.registry import listed
        from qworker.errors import BrokenQueueError, InDoubtError, LoadingError, UnavailableError

        try:
            self._shards = self.client.run(listed(self.namespace))
        except BrokenQueueError as error:
            self._shards = self._walked(str(error))
        except (UnavailableError, InDoubtError, LoadingError) as error:
            # In a Cluster its node may be away alone.
            if not self.client.factory.clustered:
                raise
            self._shards = self._walked(str(error))
        return sorted(self._shards)

    def _walked(self, problem: str) -> dict[str, Shards]:
        """Find queues by their keys, on the nodes that answer, and say why."""
        from qworker.client.registry import is_queue, there
        from qworker.errors import ServerError

        note(
            f"the index of queues cannot be read ({problem}): queues are looked up by a walk through the keys"
        )
        pattern = re.compile(re.escape(self.namespace) + r":\{([^{}/]+)\}:")
        found: set[str] = set()
        for node in self.client.factory.masters():
            cursor: Any = 0
            for _ in range(_WALKED):
                words = (
                    "SCAN",
                    cursor,
                    "MATCH",
                    f"{self.namespace}:{{*}}:[mrud][en]*",
                    "COUNT",
                    1000,
                )
                try:
                    cursor, keys = self.ask(*words, node=node)
                except ServerError as error:
                    note(f"{node} was not asked: {error}")
                    break
                for key in keys:
                    match = pattern.match(key.decode("utf-8", "replace"))
                    if match is not None and is_queue(match[1]):
                        found.add(match[1])
                if cursor == b"0":
                    break
            else:
                note(f"{node} has more than {_WALKED:,},000 keys: not all of them were looked at")
        return self.client.run(there(self.namespace, sorted(found)))

    def ref(self, name: str) -> QueueRef:
        """A queue, which need not exist, as operations take it."""
        from qworker.client.queue_ref import QueueRef

        ref = QueueRef(self.namespace, name, self.client.ids, keyring=self.keyring)
        if (shards := self._shards.get(name)) is not None:
            ref.learn(shards)
        return ref

    def queue(self, name: str) -> Queue:
        """A queue that exists, or a shard of one: `queue/3`.

        Raises `InvalidNameError`, and `InvalidOptionError` for one that does not.
        """
        from qworker.client.queue import Queue
        from qworker.wire.names import check_place

        check_place(name)
        queue = Queue(self.client, self.namespace, name)
        if not self.has_queue(name):
            raise self._unknown_queue(name)
        return queue

    def has_queue(self, name: str) -> bool:
        """Say whether there are keys of a queue, or of a shard."""
        from qworker.wire.keys import QueueKeys

        return bool(self.ask("EXISTS", *QueueKeys(self.namespace, name).all()))

    def near_queue(self, name: str) -> str | None:
        """Name the queue that is written most alike; None if none is."""
        return next(iter(get_close_matches(name, self.queues(), 1)), None)

    def empty_hint(self) -> str:
        """Say that the namespace has no queue, and which other ones have."""
        others = self.other_namespaces()
        text = f"namespace {self.namespace!r} has no queue"
        if not others:
            return f"{text}; a queue comes to be by its first message: qworker send QUEUE BODY"
        more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
        return (
            f"{text}, other namespaces of this server do: {', '.join(others[:_LISTED])}{more} "
            f"(--namespace {others[0]}, or QWORKER_NAMESPACE)"
        )

    def inspect(self, names: Iterable[str]) -> dict[str, Inspection | BrokenQueueError]:
        """Inspect queues one by one, their shards added up; a broken one gives its error."""
        from qworker.client.looking import inspect
        from qworker.errors import BrokenQueueError

        found: dict[str, Inspection | BrokenQueueError] = {}
        for name in names:
            try:
                found[name] = self.client.run(inspect(self.ref(name)))
            except BrokenQueueError as error:
                found[name] = error
        return found

    def _unknown_queue(self, name: str) -> InvalidError:
        from qworker.errors import InvalidOptionError

        near, known = self.near_queue(name), self.queues()
        if near is not None:
            limit = f"did you mean {near!r}?"
        elif known:
            more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
            limit = f"there are {', '.join(known[:_LISTED])}{more} (qworker queue ls)"
        else:
            limit = self.empty_hint()
        return InvalidOptionError("queue", f"no queue is named {name!r}", limit)


def _is_namespace(name: str) -> bool:
    """Whether a part of a key, which anybody may have written, can be offered for `--namespace`."""
    from qworker.errors import InvalidNameError
    from qworker.wire.names import check_namespace

    try:
        check_namespace(name)
    except InvalidNameError:
        return False
    return True
