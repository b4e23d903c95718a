"""The states of a stored message, in the order in which listings name them."""

from __future__ import annotations

from typing import Final

__all__ = ["STATES"]

#: ready: waits for a receiver (suspect included) · delayed: due later · held: taken out until it is enqueued ·
#: unacked: delivered and not settled · dead: a dead letter.
STATES: Final = ("ready", "delayed", "held", "unacked", "dead")
