"""A queue of the test's own, and the next version of the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consumer.conftest import lab  # noqa: F401  fixture
from tests.lua.conftest import connections, drive  # noqa: F401  fixture
from tests.upgrade.versions import make_next


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the next version."""
    return make_next(tmp_path_factory.mktemp("next"))
