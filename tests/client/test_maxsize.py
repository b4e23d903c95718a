"""The attribute maxsize limits bodies, for every way to send."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

from qworker import QWorker
from qworker.cli.main import cli
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.engine import acl
from qworker.errors import BodyTooLargeError
from qworker.store.connections import ConnectionFactory
from tests import servers

BIG = "x" * 300_000
HUGE = "x" * 1_100_000


@pytest.fixture
def app(store_url: str, namespace: str) -> Iterator[QWorker]:
    made = QWorker(namespace, url=store_url)

    @made.task(queue="jobs")
    def work(text: str) -> None: ...

    yield made
    made.close()


def _asend(app: QWorker, *texts: str) -> object:
    async def work() -> object:
        try:
            return await app.aqueue("jobs").send_many(texts)
        finally:
            await app.aclose()

    return asyncio.run(work())


#: Each way to send some bodies, and what its error calls the second one.
WAYS: dict[str, tuple[Callable[..., object], str]] = {
    "send": (lambda app, *texts: [app.queue("jobs").send(text) for text in texts], "body"),
    "bodies": (lambda app, *texts: app.queue("jobs").send_many(texts), "bodies[1]"),
    "async": (_asend, "bodies[1]"),
    "task": (lambda app, *texts: [app.tasks["work"].send(text) for text in texts], "body"),
    "calls": (
        lambda app, *texts: app.tasks["work"].send_many(
            [app.tasks["work"].call(text) for text in texts]
        ),
        "calls[1]",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_raised_limit_counts_at_once(app: QWorker, store_url: str, way: str) -> None:
    """Clients that knew the queue before the change send up to the new limit, and no more."""
    send, field = WAYS[way]
    queue = app.queue("jobs")
    queue.send("known")
    with pytest.raises(BodyTooLargeError, match="is 262144 bytes"):
        send(app, BIG)
    Queue(app.client, app.namespace, "jobs").change(maxsize="1MiB")
    send(app, BIG, BIG)
    assert queue.inspect().ready == 3
    stored = queue.inspect().ready
    with pytest.raises(BodyTooLargeError) as caught:
        send(app, "x", HUGE)
    assert (caught.value.field, caught.value.maxsize) == (field, 2**20)
    assert caught.value.size > 1_100_000
    # One by one the first was sent before the second was refused; together nothing was.
    assert queue.inspect().ready - stored == (1 if field == "body" else 0)


@pytest.mark.parametrize("shards", [1, 3])
def test_nothing_of_many_is_stored_if_one_is_too_large(app: QWorker, shards: int) -> None:
    """All are checked first, also if they take several calls or go to several shards."""
    queue = app.queue("jobs")
    queue.create(maxsize="2KiB")
    if shards > 1:
        queue.divide(shards, wait="0s")
    bodies = [b"x"] * 2500
    bodies[2400] = b"x" * 2049
    with pytest.raises(BodyTooLargeError) as caught:
        queue.send_many(bodies)
    assert (caught.value.field, caught.value.size) == ("bodies[2400]", 2049)
    assert queue.inspect().stored == 0
    bodies[2400] = b"x" * 2048
    assert len(queue.send_many(bodies)) == 2500


def test_a_lowered_limit_counts_at_once(app: QWorker) -> None:
    """The script refuses larger bodies now, and the error names the message."""
    queue = app.queue("jobs")
    queue.create(maxsize="2KiB")
    queue.send(b"x" * 2048)
    queue.change(maxsize="1KiB")
    with pytest.raises(BodyTooLargeError) as caught:
        queue.send_many([b"x" * 1024, b"x" * 1025])
    assert (caught.value.field, caught.value.size, caught.value.maxsize) == (
        "bodies[1]",
        1025,
        1024,
    )
    assert queue.inspect().stored == 1


def test_no_queue_takes_more_than_64_mebibytes(app: QWorker) -> None:
    """A body that no attribute allows is refused without a call."""
    app.queue("jobs").create(maxsize="64MiB")
    with pytest.raises(BodyTooLargeError, match="67108864"):
        app.queue("jobs").send(b"x" * (64 * 2**20 + 1))


def test_a_dead_letter_may_be_edited_up_to_the_limit(app: QWorker) -> None:
    """The queue's limit applies to edits, too."""
    queue = app.queue("jobs")
    queue.create(maxsize="1MiB")
    queue.send("x")
    queue.bury(*queue.receive())
    (dead_letter,) = queue.dead()
    entry = queue.edit_dead(dead_letter.entry_id, BIG)
    with pytest.raises(BodyTooLargeError):
        queue.edit_dead(entry, HUGE)
    queue.change(maxsize=256 * 2**10)
    with pytest.raises(BodyTooLargeError, match="262144"):
        queue.edit_dead(entry, BIG)


def test_the_command_line_obeys_the_limit(app: QWorker, store_url: str) -> None:
    """It sends bodies up to the limit, and refuses larger ones with exit code 2."""
    words = ["--url", store_url, "--namespace", app.namespace, "send", "jobs", "--file", "-"]
    app.queue("jobs").create(maxsize="1MiB")
    ran = CliRunner().invoke(cli, words, input=BIG)
    assert ran.exit_code == 0, ran.stderr
    ran = CliRunner().invoke(cli, words, input=HUGE)
    assert (ran.exit_code, app.queue("jobs").inspect().ready) == (2, 1)
    assert "1048576" in ran.stderr


def test_a_producer_may_read_the_limit(namespace: str) -> None:
    """The rights of the role are enough to send bodies over the default."""
    with servers.start("valkey", guarded=False) as server:
        words = acl.write_users(
            [acl.User(name="p", roles=["producer"], password="x")],
            namespace,
            server=acl.Server.parse(server.version),
            loading="callers",
        )[0].split(" ", 1)[1]
        with Client(ConnectionFactory(server.url)) as owner:
            Queue(owner, namespace, "q").create(maxsize="1MiB")
        admin = server.redis()
        admin.execute_command("ACL", "SETUSER", *re.findall(r"\([^)]*\)|\S+", words))
        url = server.url.replace("unix://", "unix://p:x@")
        with Client(ConnectionFactory(url)) as client:
            Queue(client, namespace, "q").send(BIG)
        assert admin.acl_log() == []
