"""Which server a client speaks to, and which queues of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from qworker.config.fields import Options
from qworker.config.kinds import Kind
from qworker.config.name_kinds import NameKind
from qworker.store.url import SCHEMES, ServerURL
from qworker.wire.names import check_namespace

__all__ = ["ClientOptions"]


@dataclass(frozen=True, slots=True)
class UrlKind(Kind):
    """A server URL; its password never shows."""

    @property
    def limit(self) -> str:
        """The schemes."""
        return SCHEMES

    def _checked(self, value: object, name: str) -> ServerURL:
        return ServerURL.parse(value, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions(Options):
    """Which server, and which queues of it."""

    url: Annotated[
        ServerURL | None, UrlKind("the server", none="the embedded store, where one is allowed")
    ] = None
    namespace: Annotated[str, NameKind("first part of every key", rule=check_namespace)] = "qworker"
