"""Points at which a run's processes end themselves."""

from importlib import import_module

import pytest

from verification.faults.crashes import POINTS


@pytest.mark.parametrize("point", POINTS)
def test_the_method_of_a_point_exists(point: str) -> None:
    """A point whose method has moved would never be reached."""
    module, owner, method = POINTS[point]

    assert callable(getattr(getattr(import_module(module), owner), method))
