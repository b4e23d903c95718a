"""A way to break the product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from qworker.engine.scripts import load_script

__all__ = ["SETTLES", "Mutation"]

SETTLES: Final = ("settle", "settle_receive")


@dataclass(frozen=True)
class Mutation:
    """A defect: `edits` are (text of a script, what stands there instead); and the world that shows it."""

    about: str
    world: str
    scripts: tuple[str, ...] = ()
    edits: tuple[tuple[str, str], ...] = ()
    #: Senders forget lane and number when they repeat a call.
    numberless: bool = False

    def changed(self) -> dict[str, bytes]:
        """The scripts that differ, as they run."""
        texts = {}
        for name in self.scripts:
            source = load_script(name).source.decode()
            for old, new in self.edits:
                assert source.count(old) == 1, f"{name}.lua has {source.count(old)} of {old!r}"
                source = source.replace(old, new)
            texts[name] = source.encode()
        return texts
