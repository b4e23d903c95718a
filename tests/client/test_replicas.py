"""Sends that wait for replicas or disks, and what they raise if the wait fails."""

from __future__ import annotations

import pickle

import pytest
from redis.exceptions import ResponseError

from qworker import NotReplicatedError, NotSyncedError, QueueFullError, QWorker
from qworker.client.placement import store_placed
from qworker.client.plan import Plan
from qworker.engine.options import SendOptions
from qworker.engine.send import NewMessage, SendCall
from qworker.errors import InvalidOptionError
from tests import servers


@pytest.mark.skipif(servers.GUARDED, reason="it takes a right from the default user")
def test_a_wait_that_is_forbidden_does_not_hide_that_the_message_is_stored() -> None:
    """A user without WAIT gets the id of the stored message, and the server's error as the cause."""
    with servers.start("valkey") as server:
        server.redis().execute_command("ACL", "SETUSER", "default", "-wait")
        app = QWorker("n", url=server.url)
        with pytest.raises(NotReplicatedError, match="stored, but on 0 of 1 replicas") as error:
            app.queue("q").send("a", replicas=1)
        assert isinstance(error.value.__cause__, ResponseError)
        assert [message.id for message in app.queue("q").peek()] == error.value.ids
        app.close()


def test_a_refused_send_is_refused_whatever_the_replicas(store_url: str, namespace: str) -> None:
    """A refusal comes first, and the connection is in sync afterwards."""
    app = QWorker(namespace, url=store_url)
    queue = app.queue("q")
    with pytest.raises(NotReplicatedError):
        queue.send("a", replicas=9, within="1ms")
    with pytest.raises(QueueFullError):
        queue.send("b", replicas=9, within="1ms", maxlen=1)
    assert queue.inspect().ready == 1
    app.close()


@pytest.mark.parametrize("given", [{"replicas": -1}, {"replicas": 1, "within": "3s"}])
def test_waits_are_bounded(store_url: str, namespace: str, given: dict[str, object]) -> None:
    """A wait of more than two seconds would exceed the reply timeout of the connection."""
    app = QWorker(namespace, url=store_url)
    with pytest.raises(InvalidOptionError):
        app.queue("q").send("a", **given)
    app.close()


def test_a_synced_send_is_on_disk() -> None:
    """It returns when the append-only file has been synced, also for many messages and through a task's options."""
    with servers.start("valkey", "--appendfsync", "always") as server:
        app = QWorker("n", url=server.url)
        app.task(name="work", queue="q")(lambda: None)
        app.queue("q").send("a", fsync=True, within="2s")
        app.queue("q").send_many([b"b"] * 1500, fsync=True, within="2s")
        app.tasks["work"].options(fsync=True, within="2s").send()
        assert app.queue("q").inspect().ready == 1502
        app.close()


@pytest.mark.skipif(servers.GUARDED, reason="it takes a right from the default user")
def test_an_unconfirmed_send_names_what_it_stored_in_other_shards() -> None:
    """The caller gets the ids of all messages that are stored, also of those in shards that came before."""
    with servers.start("valkey", "--appendfsync", "always") as server:
        app = QWorker("n", url=server.url)
        queue = app.queue("q")
        queue.divide(2, wait=0)
        messages = [NewMessage(f"m{number}", b"\n{}", unique=f"{number}") for number in range(9)]
        plan = store_placed(queue.ref, messages, SendOptions(fsync=True, within="2s"))

        def forbid_after_first() -> Plan[list[str]]:
            step = next(plan)
            while True:
                result = yield step
                if isinstance(step, SendCall):
                    server.redis().execute_command("ACL", "SETUSER", "default", "-waitaof")
                step = plan.send(result)

        with pytest.raises(NotSyncedError) as error:
            app.client.run(forbid_after_first())
        plan.close()
        stored = [message.id for message in queue.peek(10)]
        assert len(stored) == 9
        assert sorted(error.value.ids) == sorted(stored)
        app.close()


@pytest.mark.parametrize(
    ("engine", "arguments", "said"),
    [
        ("valkey", ("--appendonly", "no"), "appendonly is disabled"),
        ("redis", (), "unknown command"),
    ],
)
def test_a_server_that_cannot_confirm_its_disk(
    engine: str, arguments: tuple[str, ...], said: str
) -> None:
    """The message is stored; the error says so, and that the disk is not known to have it."""
    if said == "unknown command" and servers.version_of(engine) >= (7, 2):
        pytest.skip("this Redis knows WAITAOF")
    with servers.start(engine, *arguments) as server:
        app = QWorker("n", url=server.url)
        with pytest.raises(
            NotSyncedError, match=f"not confirmed on the server's disk.*{said}"
        ) as error:
            app.queue("q").send("a", fsync=True)
        assert isinstance(error.value.__cause__, ResponseError)
        assert [message.id for message in app.queue("q").peek()] == error.value.ids
        assert pickle.loads(pickle.dumps(error.value)).ids == error.value.ids
        app.close()


def test_the_disks_of_missing_replicas() -> None:
    """Without replicas, the error still confirms the server's own disk."""
    with servers.start("valkey", "--appendfsync", "always") as server:
        app = QWorker("n", url=server.url)
        with pytest.raises(
            NotSyncedError, match="on the disks of 0 of 1 replicas within 50 ms"
        ) as error:
            app.queue("q").send("a", replicas=1, fsync=True, within="50ms")
        assert error.value.synced
        app.close()
