"""The options of an import."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ImportSelection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSelection:
    """What to import. `origin` is the URL of the other system's server, None for ours; no `queues` means all."""

    origin: str | None
    queues: tuple[str, ...]
    queue_pairs: tuple[str, ...]
    attributes: bool
    dry_run: bool
    yes: bool
