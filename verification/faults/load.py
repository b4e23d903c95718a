"""What runs beside a fault."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from verification.faults.producer import Sending

__all__ = ["CROWD_QUEUES", "Load"]

#: The queues of the calls of a crowd: in a Cluster of three masters each holds one of them at least.
CROWD_QUEUES: Final = ("load", "aload", "bload", "cload")


@dataclass(frozen=True, kw_only=True)
class Load:
    """Producers, workers and daemons, and how their queues are set.

    `flags` go to `qworker run`, which runs `app`; `queues` are those it receives from. `producer` is the module of a
    producer. `proxied`: each process reaches the server through
    its own chaos proxy, `stage.proxies[role]`. `fewest` workers have to be there, with `fewest_procs` children each,
    whatever is saved.
    """

    producers: int = 2
    workers: int = 2
    fewest: int = 1
    procs: int = 2
    fewest_procs: int = 1
    daemons: int = 1
    sending: Sending = field(default_factory=Sending)
    producer: str = "verification.faults.producer"
    app: str = "verification.faults.jobs:app"
    flags: tuple[str, ...] = ()
    queues: str = "load"
    visibility: str = "2s"
    max_receives: int = 50
    journal: str = "off"
    tick_s: float = 0.2
    proxied: bool = False

    def smaller(self) -> Load:
        """The same with as few processes as will do."""
        workers, producers = min(self.fewest, self.workers), min(1, self.producers)
        procs = min(self.fewest_procs, self.procs)
        return replace(self, procs=procs, workers=workers, producers=producers)

    @property
    def visibility_s(self) -> float:
        """The visibility timeout in seconds."""
        return float(self.visibility.removesuffix("s"))
