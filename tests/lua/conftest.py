"""Fixtures of the script tests: a new queue on the shared servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lua.drive import Drive


@pytest.fixture
def drive(store_url: str, namespace: str, queue_name: str) -> Iterator[Drive]:
    """A queue on Valkey."""
    queue = Drive(store_url, namespace, queue_name)
    yield queue
    queue.close()


@pytest.fixture
def engine_drive(engine_url: str, namespace: str, queue_name: str) -> Iterator[Drive]:
    """A queue on each engine in turn, for what might differ between them."""
    queue = Drive(engine_url, namespace, queue_name)
    yield queue
    queue.close()
