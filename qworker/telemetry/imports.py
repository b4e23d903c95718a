"""Calls that wait for the import of another package, and imports that leave a package out, or to later."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from threading import get_ident
from types import ModuleType
from typing import Any

__all__ = ["Late", "left_out", "when_imported"]


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call `then` after a top-level module has been imported; at once if it has been already."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Finder(name, then))


@contextmanager
def left_out(name: str) -> Iterator[None]:
    """Meanwhile, let first imports of a top-level module fail in this thread, as if it were not installed."""
    finder = _Absence(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.thread = None


class Late:
    """Stands for what `load` returns, which is called when it is called itself or an attribute of it is read."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what it stands for."""
        return self._load()(*args, **kwargs)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._load(), attribute)


class _Absence:
    """Finds no module of this name in one thread. It stays in `sys.meta_path`, as `_Finder` does."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.thread: int | None = get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """See `importlib.abc.MetaPathFinder`."""
        if name == self._name and get_ident() == self.thread:
            raise ModuleNotFoundError(f"{name} is left out", name=name)


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
