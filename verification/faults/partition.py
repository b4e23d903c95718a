"""A master behind Sentinels that a partition leaves alone with one of its producers.

The others (replicas, Sentinels, and all clients that ask these) know the master by the address of a proxy, which lets
nothing pass while the partition lasts. The producer on its side knows the master's own port.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.chaos import ChaosProxy
from tests.topologies.servers import Trio, until

__all__ = ["PartedTrio", "parted_trio"]

_DOWN_AFTER_MS = 1000


class PartedTrio(Trio):
    """A trio whose first master can be cut off; `own_url` is the way to it that stays open."""

    def __init__(self, options: Sequence[str], rtt_ms: float) -> None:
        super().__init__("valkey", _DOWN_AFTER_MS, options, rtt_ms)
        self._proxies = ExitStack()

    def join(self) -> None:
        """Put the proxy in front of the first master before any client connects."""
        first = self.data[0]
        self.own_url = f"redis://{first.address}"
        self.proxy = self._proxies.enter_context(ChaosProxy(self.own_url))
        # From here on the node is where the proxy is, for all clients that ask it for its port.
        first.port = self.proxy.port
        until(lambda: first.redis().ping(), what=f"{first} to answer")
        first.ask("CONFIG", "SET", "replica-announce-port", first.port)
        super().join()

    def close(self) -> None:
        """End the proxy with the nodes."""
        self._proxies.close()
        super().close()


@contextmanager
def parted_trio(*options: str, rtt_ms: float = 0.0) -> Iterator[PartedTrio]:
    """Start one; `options` are for the data nodes, which are `rtt_ms` away."""
    made = PartedTrio(options, rtt_ms)
    try:
        made.join()
        yield made
    finally:
        made.close()
