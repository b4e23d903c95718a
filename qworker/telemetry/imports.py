"""Calls that wait for the import of another package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["when_imported"]


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call `then` after a top-level module has been imported; at once if it has been already."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder:
    """Lets the finders after it find the module, and has `then` called after its code has run.

    It stays in `sys.meta_path`: another thread that imports something else at that moment iterates over that list.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name != self._name:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._call_after(spec)
                return spec
        return None

    def _call_after(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None:
            return
        run = loader.exec_module

        def run_and_call(module: ModuleType) -> None:
            run(module)
            if module.__name__ == self._name:  # a loader may serve several modules
                self._then()

        loader.exec_module = run_and_call  # type: ignore[method-assign]
