"""Options as Spark passes them: text by name, names in any case; and the options that reads and writes share.

Every option is checked, and an unknown one refused with the nearest name: Spark would drop it silently, and a misspelt
limit would not limit anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Final, Self

from qworker.config.fields import Options, kinds_of, unknown_option
from qworker.config.kinds import Kind
from qworker.config.name_kinds import NameKind
from qworker.errors import InvalidOptionError
from qworker.store.options import UrlKind
from qworker.store.url import ServerURL
from qworker.wire.names import check_namespace

__all__ = ["SparkOptions", "TextKind", "camel"]

#: Options that Spark adds to a stream.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})


class TextKind(Kind):
    """Text that is not empty."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """The range."""
        return "it must be text that is not empty"

    def _checked(self, value: object, field: str) -> str:
        if not isinstance(value, str) or not value:
            raise self._refused(value, field)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions(Options):
    """Base of the options of reads and writes: the server and the namespace. In Spark the names are camelCase."""

    #: Spark's name of an option, in lower case → ours.
    aliases: ClassVar[Mapping[str, str]] = {}

    url: Annotated[ServerURL | None, UrlKind("the server", none="from urlEnv")] = None
    url_env: Annotated[
        str, TextKind("environment variable with the URL; keeps passwords out of query plans")
    ] = "QWORKER_URL"
    namespace: Annotated[str, NameKind("first part of every key", rule=check_namespace)] = "qworker"

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Read options as Spark passes them. Raises `InvalidOptionError`, with the nearest name for an unknown one."""
        kinds = {camel(name): (name, kind) for name, kind in kinds_of(cls).items()}
        by_lower = {name.lower(): name for name in kinds}
        values: dict[str, Any] = {}
        for name, text in given.items():
            lower = name.lower()
            if lower in _OF_SPARK:
                continue
            known = by_lower.get(cls.aliases.get(lower, lower))
            if known is None:
                # Spark passes names in lower case.
                near = get_close_matches(lower, by_lower, 1)
                field = f"option {ascii(name)[1:-1]}"
                raise unknown_option(field, by_lower[near[0]] if near else name, kinds)
            python_name, kind = kinds[known]
            values[python_name] = kind.parse(text, f"option {known}")
        return cls(**values)

    def server(self) -> ServerURL:
        """The URL to connect to; without the option `url`, read from the environment of this process.

        Starts the store of an `embedded:` URL. Raises `InvalidOptionError` if no server is named.
        """
        from qworker.store.embedded.store import resolve_url

        url = self.url
        if url is None:
            text = os.environ.get(self.url_env)
            if not text:
                raise InvalidOptionError(
                    "option url",
                    f"is not given, and {self.url_env} is not set",
                    "set it to the URL of the server, before Spark starts on the driver",
                )
            url = ServerURL.parse(text, self.url_env)
        if url.scheme == "embedded":
            return ServerURL.parse(resolve_url(str(url)))
        return url


def camel(name: str) -> str:
    """Write a name in Spark's style: `max_queue_length` → `maxQueueLength`."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
