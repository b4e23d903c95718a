"""Sends that wait for replicas: what they answer where the wait itself goes wrong."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from qworker import NotReplicatedError, QueueFullError, QWorker
from qworker.errors import InvalidOptionError
from tests import servers


def test_a_wait_that_is_forbidden_does_not_hide_that_the_message_is_stored() -> None:
    """Whoever may not WAIT gets the id of the stored message, and the server's word as the cause."""
    with servers.start("valkey") as server:
        server.redis().execute_command("ACL", "SETUSER", "default", "-wait")
        app = QWorker("n", url=server.url)
        with pytest.raises(NotReplicatedError, match="stored, but on 0 of 1 replicas") as error:
            app.queue("q").send("a", replicas=1)
        assert isinstance(error.value.__cause__, ResponseError)
        assert [each.id for each in app.queue("q").peek()] == error.value.ids
        app.close()


def test_a_refused_send_is_refused_whatever_the_replicas(store_url: str, namespace: str) -> None:
    """A refusal comes first, and the connection is in step afterwards."""
    app = QWorker(namespace, url=store_url)
    queue = app.queue("q")
    with pytest.raises(NotReplicatedError):
        queue.send("a", replicas=1, within="1ms")
    with pytest.raises(QueueFullError):
        queue.send("b", replicas=1, within="1ms", maxlen=1)
    assert queue.inspect().ready == 1
    app.close()


@pytest.mark.parametrize("given", [{"replicas": -1}, {"replicas": 1, "within": "3s"}])
def test_waits_are_bounded(store_url: str, namespace: str, given: dict[str, object]) -> None:
    """A wait of more than two seconds would outlast the patience of the connection."""
    app = QWorker(namespace, url=store_url)
    with pytest.raises(InvalidOptionError):
        app.queue("q").send("a", **given)
    app.close()
