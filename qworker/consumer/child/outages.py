"""Servers that do not answer a child: logged when they are lost and when they are back, and not called in between."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

from qworker.client.execute.backoff import LeftAloneError
from qworker.errors import InDoubtError
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.client.execute.backoff import AwayServers
    from qworker.errors import ServerError
    from qworker.store.nodes import Address

__all__ = ["Outages"]

_log = guarded(__name__)


class Outages:
    """The outages that one connection of a child has met.

    `away`: servers that were given up lately, over this connection or others. None: there is one server, and the child
    waits for it.
    """

    def __init__(self, away: AwayServers | None) -> None:
        self._away = away
        #: Since when each server has not answered; the only server has the key None.
        self._lost_since: dict[Address | None, float] = {}

    def check(self, address: Address) -> None:
        """Raise `LeftAloneError` if a server is left alone."""
        if self._away is not None:
            self._away.check(address, -inf)

    def is_left_alone(self, address: Address) -> bool:
        """Whether calls to a server fail at once for now."""
        try:
            self.check(address)
        except LeftAloneError:
            return True
        return False

    def leave_alone(self, address: Address | None, error: ServerError) -> None:
        """Let calls to a server fail at once for a while, if there are other servers."""
        if self._away is not None:
            self._away.failed(address, error)

    def lost(self, address: Address | None, error: ServerError) -> None:
        """Log that a server does not answer, once until it does."""
        key = address if self._away is not None else None
        if key not in self._lost_since:
            self._lost_since[key] = time.monotonic()
            server = None if address is None else str(address)
            problem = str(error)
            if isinstance(error, InDoubtError) and error.__cause__ is not None:
                # Its own text tells a caller what may be repeated; a worker repeats by itself.
                problem = (
                    f"the connection broke during a call, which is repeated ({error.__cause__})"
                )
            _log.warning("server_lost", server=server, error=problem, kind=type(error).__name__)

    def answered(self, address: Address, asked_at: float) -> None:
        """Ask a server as usual again, see `AwayServers.served`, and log that it is back if it was lost."""
        if self._away is not None:
            self._away.served(address, asked_at)
        if self._lost_since:
            since = self._lost_since.pop(address if self._away is not None else None, None)
            if since is not None:
                seconds = round(time.monotonic() - since, 1)
                _log.info("server_returned", server=str(address), after_seconds=seconds)
