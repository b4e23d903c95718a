"""Settings of a bulk send; the caller has checked them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BulkOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """Where rows go, and how long a bulk send waits for room.

    `queue`, `priority`, `delay_ms` and `ttl_ms` apply to rows that do not set them; None: each row names its queue, the
    queue's own delay and TTL apply. `max_queue_length`: messages that a queue may store, 0 for no limit. `full_wait_s`:
    how long to wait for room without any progress, 0 fails at once. `partitions` of the input, 0 is not checked.
    """

    namespace: str = "qworker"
    queue: str | None = None
    priority: int = 0
    delay_ms: int | None = None
    ttl_ms: int | None = None
    max_queue_length: int = 0
    full_wait_s: float = 0.0
    partitions: int = 0
