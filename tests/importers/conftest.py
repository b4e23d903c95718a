"""A server with the keys of another system, and ours to move them into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from qworker.client.queue_ref import QueueRef
from qworker.importers.mover import Mover
from qworker.importers.source import Source
from qworker.store.connections import ConnectionFactory
from tests import servers
from tests.cli.conftest import Ran, Shop, bare, in_empty_directory, run, shop
from tests.consumer.workers import Lab
from tests.importers.producers import Producers

__all__ = ["bare", "in_empty_directory", "run", "shop"]


@dataclass(frozen=True)
class Other:
    """The server of the other system: a database with the keys of the test alone."""

    url: str
    socket: str
    db: int
    redis: redis.Redis


@pytest.fixture(scope="session")
def databases() -> Iterator[Iterator[tuple[str, int]]]:
    """The socket of a server, and its own database: these systems share key names."""
    with servers.start("valkey", "--databases", "1000") as server:
        yield ((server.socket, db) for db in range(1000))


@pytest.fixture
def other(databases: Iterator[tuple[str, int]]) -> Iterator[Other]:
    """An empty database for the other system."""
    socket, db = next(databases)
    url = f"unix://{socket}?db={db}"
    with ConnectionFactory(url).redis() as client:
        yield Other(url, socket, db, client)


@pytest.fixture(scope="session")
def producers(request: pytest.FixtureRequest) -> Producers:
    """The producers' own libraries."""
    assert request.config.cache is not None
    return Producers(request.config.cache.mkdir("qworker-producers"))


@pytest.fixture
def bring(run: Callable[..., Ran], other: Other) -> Callable[..., Ran]:
    """Run `qworker import SYSTEM …` from the other server into the shop, without a question."""

    def bring_in(system: str, *flags: str) -> Ran:
        return run("import", system, "--from", other.url, "--yes", *flags)

    return bring_in


@pytest.fixture
def lab(shop: Shop, tmp_path: Path) -> Iterator[Lab]:
    """Workers over the shop."""
    made = Lab(shop.url, shop.namespace, tmp_path)
    yield made
    made.close()


@pytest.fixture
def move(shop: Shop) -> Callable[..., Any]:
    """Move a queue of a source into the shop's queue of that name."""

    def move_queue(source: Source, name: str, into: str = "") -> Any:
        ref = QueueRef(shop.namespace, into or name, shop.client.ids)
        return Mover(shop.client, ref).move(source.queue(name))

    return move_queue
