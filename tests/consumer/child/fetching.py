"""What tests of receives look at beside messages: leases on the board, commands, suspects."""

from __future__ import annotations

from collections.abc import Iterator

from redis.client import Monitor

from qworker import QWorker
from qworker.consumer.board.board import Board
from qworker.consumer.board.states import LeaseState, LeaseView
from qworker.engine.raw import raw
from qworker.wire.keys import QueueKeys
from tests.consumer.driving import redis_of


def held_leases(board: Board) -> list[LeaseView]:
    """The leases on a board that are held."""
    return [lease for lease in board.leases.views() if lease.state is LeaseState.HELD]


def count_unacked(app: QWorker) -> object:
    """The command that counts the leases of the default queue."""
    return raw("ZCARD", QueueKeys(app.namespace, "default").unacked, decode=int)


def said(commands: Monitor) -> Iterator[str]:
    """Every command that the server gets, as it arrives."""
    while True:
        yield str(commands.next_command()["command"])


def script_calls(app: QWorker) -> int:
    """How many scripts the server has run so far."""
    with redis_of(app) as redis:
        stats = redis.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])


def make_suspects(app: QWorker, number: int) -> None:
    """Turn the first ready messages into suspects, as two crashes in company would."""
    keys = QueueKeys(app.namespace, "default")
    with redis_of(app) as redis:
        for _ in range(number):
            item = redis.lpop(keys.ready[0])
            assert isinstance(item, bytes)
            redis.rpush(keys.suspect, item.replace(b" 0 0 0 0\n", b" 2 0 0 2\n"))


def fail() -> None:
    """A handler that fails."""
    raise ValueError
