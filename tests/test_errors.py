"""The tree of errors, as it is drawn and as it is."""

from __future__ import annotations

import pickle
import re

from qworker import errors
from tests.tables import each

CLASSES = [
    kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.QworkerError)
]


def drawn() -> dict[str, str]:
    """Each error of the drawing at the top of the package, with the one above it."""
    parents: dict[str, str] = {}
    above: list[str] = []
    for indent, name in re.findall(r"^([│├└─ ]*)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE):
        depth = len(indent) // 4
        parents[name] = above[depth - 1] if depth else "Exception"
        above[depth:] = [name]
    return parents


def test_the_drawing_shows_every_error_below_its_base() -> None:
    """You read there which errors an `except` catches."""
    assert drawn() == {kind.__name__: kind.__bases__[0].__name__ for kind in CLASSES}


def test_every_error_is_public() -> None:
    """An error that can be raised can be caught by `from qworker import …`."""
    assert {kind.__name__ for kind in CLASSES} <= set(errors.__all__)


@each("name", errors.__all__)
def test_tracebacks_and_pickles_show_the_name_that_is_imported(name: str) -> None:
    """Which file of the package defines an error may change."""
    public = getattr(errors, name)

    assert f"{public.__module__}.{public.__qualname__}" == f"qworker.errors.{name}"
    assert pickle.loads(pickle.dumps(public)) is public
