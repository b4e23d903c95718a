"""The states of stored messages and of runs, in the order in which listings name them."""

from __future__ import annotations

from typing import Final

__all__ = ["PURGEABLE", "RUN_STATES", "STATES"]

#: ready: waits for a receiver (suspect included) · delayed: due later · held: taken out until it is enqueued ·
#: unacked: delivered and not settled · dead: a dead letter.
STATES: Final = ("ready", "delayed", "held", "unacked", "dead")
#: Those that can be purged: an unacked message belongs to its receiver.
PURGEABLE: Final = ("ready", "delayed", "dead")
#: The states of runs that have not ended, see `qworker.client.inspect.runs`.
RUN_STATES: Final = ("ready", "running", "sleeping", "waiting", "delayed", "held", "dead", "lost")
