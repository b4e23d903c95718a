"""The list of reapers as it stands in Redis: who reaps, and who has not come by for too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from qworker.wire.numbers import score_ms

__all__ = ["GONE_MS", "Reaper", "list_reapers"]

#: Workers write themselves every 2 s, reapers at every tick: one not seen for so long is gone, in ms.
GONE_MS: Final = 15_000


@dataclass(frozen=True, slots=True)
class Reaper:
    """A process that reaps, and when it was seen last."""

    name: str
    age_ms: int

    @property
    def is_gone(self) -> bool:
        """Whether it has been silent for too long."""
        return self.age_ms > GONE_MS


def list_reapers(flat: Sequence[bytes], now_ms: int) -> list[Reaper]:
    """Read what `ZREVRANGE … WITHSCORES` answers, the latest first; `now_ms` by the server's clock."""
    return [
        Reaper(name.decode("utf-8", "replace"), max(0, now_ms - score_ms(score)))
        for name, score in zip(flat[::2], flat[1::2], strict=True)
    ]
