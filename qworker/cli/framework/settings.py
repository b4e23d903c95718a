"""The configuration of one command line: flags over the environment over the file, and keys."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from qworker.cli.framework.terminal import note

if TYPE_CHECKING:
    from qworker.config.fields import Options
    from qworker.config.files import ConfigFile
    from qworker.config.loading import Loaded
    from qworker.store.options import ClientOptions
    from qworker.telemetry.options import LogOptions
    from qworker.wire.keyring import Keyring

    T = TypeVar("T", bound=Options)

__all__ = ["REDIS_URL", "Settings"]

#: The variable that names the server if no setting of qworker does.
REDIS_URL: Final = "REDIS_URL"
#: The source of a URL that an app gave itself.
_APP: Final = "app"


class Settings:
    """The global options of a command line over the environment over the file."""

    def __init__(self) -> None:
        self._given: dict[str, Any] = {}

    def give(self, name: str, value: Any) -> None:
        """Take a global option of the command line."""
        self._given[name] = value

    def load(self, options: type[T], given: Mapping[str, object] | None = None) -> Loaded[T]:
        """Load an options class; `given` are the options of the verb."""
        from qworker.config.loading import load

        return load(
            options, given={**self._given, **(given or {})}, environ=os.environ, file=self.file
        )

    @cached_property
    def file(self) -> ConfigFile:
        """The configuration file, its keys checked; its warnings are shown when it is read."""
        from qworker.config.files import CONFIG_VARIABLE, read_file

        named = self._given.get("config") or os.environ.get(CONFIG_VARIABLE)
        file = read_file(Path.cwd(), Path(named) if named else None)
        for warning in file.warnings:
            note(f"warning: {warning}")
        if file.values:
            # Imported here: the options of everything, which most command lines do without.
            from qworker.cli.framework.option_classes import OPTION_CLASSES
            from qworker.config.loading import check_keys

            check_keys(file, OPTION_CLASSES)
        return file

    @cached_property
    def client(self) -> Loaded[ClientOptions]:
        """The client options; the URL falls back to REDIS_URL.

        Apps use REDIS_URL too: a command that did not would show empty queues.
        """
        from qworker.config.loading import Loaded, Setting
        from qworker.store.options import ClientOptions
        from qworker.store.url import ServerURL

        loaded = self.load(ClientOptions)
        if loaded.options.url is not None or not os.environ.get(REDIS_URL):
            return loaded
        url = ServerURL.parse(os.environ[REDIS_URL], REDIS_URL)
        settings = {**loaded.settings, "url": Setting(str(url), REDIS_URL)}
        return Loaded(dataclasses.replace(loaded.options, url=url), settings)

    @property
    def namespace(self) -> str:
        """The namespace, checked."""
        return self.client.options.namespace

    @property
    def embedded(self) -> bool:
        """Whether --embedded is given."""
        return bool(self._given.get("embedded"))

    @property
    def server_from(self) -> str:
        """What names the server: a flag, a variable, a place in the file, `app`, or `default`."""
        return "--embedded" if self.embedded else self.client.settings["url"].source

    def take_url_of(self, app: str, logs: LogOptions) -> None:
        """Take the URL that an app gave itself if no flag, QWORKER_URL or file names a server: the app sends there.

        Raises `AppLoadError` if it cannot be imported.
        """
        from qworker.store.options import ClientOptions

        loaded = self.load(ClientOptions)
        if loaded.options.url is not None or self.embedded:
            return
        from qworker.config.loading import Loaded, Setting
        from qworker.consumer.supervisor.app_url import ask_app_url

        url = ask_app_url(app, logs)
        if url is not None:
            settings = {**loaded.settings, "url": Setting(str(url), _APP)}
            self.client = Loaded(dataclasses.replace(loaded.options, url=url), settings)

    @cached_property
    def keyring(self) -> Keyring:
        """The keys that the environment or the file names; an empty ring without any."""
        from qworker.wire.key_options import KeyOptions, keyring_of

        return keyring_of(self.load(KeyOptions).options)

    def export(self) -> None:
        """Write the keys, `give_up` and the file's name to the environment: apps of other processes read only that."""
        from qworker.config.files import CONFIG_VARIABLE
        from qworker.wire.key_options import KeyOptions

        if self.file.path is not None:
            # Also for apps that change the directory.
            os.environ[CONFIG_VARIABLE] = str(self.file.path.absolute())

        keys = self.load(KeyOptions).options
        if self.keyring and keys.keys_file is not None:
            os.environ["QWORKER_KEYS_FILE"] = str(Path(keys.keys_file).absolute())
            os.environ["QWORKER_SIGNATURES"] = keys.signatures
        give_up = self.client.settings["give_up"]
        if give_up.source != "default":
            os.environ["QWORKER_GIVE_UP"] = give_up.value

    def set_up_logs(self, *, service: bool = False) -> None:
        """Set up the logs: from `info` on for a service, from `warning` on beside the output of other verbs."""
        from qworker.telemetry.logger import import_structlog
        from qworker.telemetry.logs import configure_logs
        from qworker.telemetry.options import LogOptions

        loaded = self.load(LogOptions)
        quiet = not service and loaded.settings["log_level"].source == "default"
        configure_logs(loaded.options.log_format, "warning" if quiet else loaded.options.log_level)
        if service:
            import_structlog()  # before the modules of the service import it, and rich with it
