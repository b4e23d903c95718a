"""Signed and encrypted messages through a server: sent, received, run, retried, buried, edited, redriven, scheduled.

What stands in Redis never shows a body that was encrypted, and only messages from holders of a key run.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker import QWorker, Retry, cron
from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.queue import AsyncQueue, Queue
from qworker.consumer.manifest import manifest_of
from qworker.daemon.reaper import Reaper
from qworker.daemon.schedules import register
from qworker.engine.options import QueueAttributes
from qworker.engine.raw import raw
from qworker.errors import InvalidOptionError
from qworker.store.connections import ConnectionFactory
from qworker.testing import drain
from qworker.wire.keyring import NO_KEYS, Keyring
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.consumer.driving import drain as burst
from tests.consumer.driving import make_due, until
from tests.consumer.workers import Lab

MARKER = "plaintext-marker-7d1f"
SECRET = bytes(range(32))
SIGNING = Keyring(signing={"k1": SECRET})
SEALING = Keyring(encryption={"k1": SECRET})
BOTH = Keyring(signing={"k1": SECRET}, encryption={"k1": SECRET})
RINGS = pytest.mark.parametrize("ring", [SIGNING, SEALING, BOTH], ids=["sign", "seal", "both"])


@pytest.fixture
def open_queue(store_url: str, namespace: str) -> Iterator[object]:
    """Open a queue with a keyring."""
    clients: list[Client] = []

    def with_ring(ring: Keyring, name: str = "mail") -> Queue:
        client = Client(ConnectionFactory(store_url), keyring=ring)
        clients.append(client)
        return Queue(client, namespace, name)

    yield with_ring
    for client in clients:
        client.close()


@pytest.fixture
def make_app(store_url: str, namespace: str) -> Iterator[object]:
    """Make an app with a keyring, and a task `pay` that notes what it is called with."""
    apps: list[tuple[QWorker, list[object]]] = []

    def with_ring(ring: Keyring) -> tuple[QWorker, list[object]]:
        app, calls = QWorker(namespace, url=store_url, keys=ring), list[object]()

        @app.task(queue="mail", max_receives=2, retry=Retry.fixed("1s"))
        def pay(what: str) -> None:
            calls.append(what)
            if what.startswith("fail"):
                raise ValueError(f"cannot pay {what}")

        @app.task(queue="mail", batch=10)
        def load(items: list[str]) -> None:
            calls.extend(items)

        apps.append((app, calls))
        return app, calls

    yield with_ring
    for app, _ in apps:
        app.close()


def reasons(queue: Queue) -> list[str]:
    return [dead_letter.reason for dead_letter in queue.dead(100)]


# -- low level -------------------------------------------------------------------------------------


@RINGS
def test_sent_and_received(ring: Keyring, open_queue) -> None:
    """One message, and many in one call; received by holders of the keys, after a nack and an extension as well."""
    queue = open_queue(ring)
    queue.send({"n": MARKER}, priority=3, unique="u", ttl="1h", max_receives=4)
    queue.send_many([{"n": number} for number in range(5)])
    first, *others = queue.receive(10)
    assert first.json() == {"n": MARKER}
    assert sorted(other.json()["n"] for other in others) == [0, 1, 2, 3, 4]
    queue.nack(first)
    queue.ack(*others)
    [again] = queue.receive(10)
    again = queue.extend(again, "1m")
    queue.release(again)
    [again] = queue.receive(10)
    assert (again.json(), again.receive_count) == ({"n": MARKER}, 2)
    assert queue.received(again.receipt).json() == {"n": MARKER}
    assert [each.id for each in queue.ack(again)] == [first.id]


async def _async_round(ring: Keyring, url: str, namespace: str) -> list[object]:
    client = AsyncClient(ConnectionFactory(url), keyring=ring)
    queue = AsyncQueue(client, namespace, "mail")
    await queue.send({"n": 1})
    await queue.send_many([{"n": 2}, {"n": 3}])
    received = [message.json() for message in await queue.receive(10)]
    await client.close()
    return received


@RINGS
def test_async_does_the_same(ring: Keyring, store_url: str, namespace: str) -> None:
    """The async queue signs, encrypts and opens as the sync one does."""
    ran = asyncio.run(_async_round(ring, store_url, namespace))
    assert ran == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.bad_input("data found: wrong signature")
def test_an_unsigned_message_is_buried(open_queue) -> None:
    """Plain JSON of others, a message without a signature, one of another queue: dead, with reason and words."""
    signed, unsigned = open_queue(SIGNING), open_queue(NO_KEYS)
    unsigned.send({"n": 1})
    unsigned.client.run(_push(signed, b'{"n": 2}'))
    elsewhere = open_queue(SIGNING, "pay")
    elsewhere.send({"n": 3})
    [stored] = elsewhere.peek(1)
    unsigned.client.run(_push(signed, stored.item))
    signed.send({"n": 4})
    assert [message.json() for message in signed.receive(10)] == [{"n": 4}]
    dead_letters = signed.dead(10)
    assert [dead_letter.reason for dead_letter in dead_letters] == ["bad_signature"] * 3
    assert [dead_letter.error for dead_letter in dead_letters] == [
        "is not signed",
        "is plain JSON and so not signed",
        "has a signature of the key 'k1' that does not match its queue, id and body",
    ]
    assert dead_letters[0].message.closed == "is not signed"


def _push(queue: Queue, item: bytes):
    yield raw("RPUSH", queue.keys.ready[0], item, decode=int)


@pytest.mark.bad_input("data found: unknown codec or key")
def test_a_message_whose_key_is_not_held_comes_back(open_queue) -> None:
    """Others may hold it: given back for a while, counted, and dead in the end; never handed out as it is stored."""
    open_queue(SEALING).send({"n": MARKER}, max_receives=1)
    queue = open_queue(NO_KEYS)
    assert queue.receive(1) == []
    [dead_letter] = queue.dead(1)
    assert (dead_letter.reason, dead_letter.error_class) == ("max_receives", "UnknownKeyError")
    assert dead_letter.message.closed == "is encrypted with the key 'k1', which this process lacks"
    open_queue(SEALING).send({"n": 2})
    assert queue.receive(1) == []
    [waiting] = queue.peek(1, state="delayed")
    assert (waiting.nacks, waiting.unreadable) == (1, True)
    assert open_queue(SEALING).peek(1, state="delayed")[0].body == b'{"n":2}'


@RINGS
def test_inspecting_verbs_decrypt_with_the_keys_they_have(ring: Keyring, open_queue) -> None:
    """Peek, show, scan and dead letters show bodies to who holds the keys; to others, why they do not."""
    queue, stranger = open_queue(ring), open_queue(NO_KEYS)
    [message_id] = queue.send_many([{"task": "pay", "args": [MARKER]}])
    sealed = ring is not SIGNING
    for look in (
        lambda each: each.peek(1)[0],
        lambda each: each.show(message_id),
        lambda each: next(iter(each.scan("ready"))),
    ):
        assert MARKER.encode() in look(queue).body
        assert look(queue).closed == ""
        assert look(queue).task == "pay"
        assert (MARKER.encode() not in look(stranger).body) == sealed
        assert look(stranger).unreadable == sealed
    [message] = queue.receive(1)
    assert MARKER.encode() in queue.pending()[0].body
    queue.bury(message)
    assert [dead_letter.message.task for dead_letter in queue.dead(1, task="pay")] == ["pay"]
    assert stranger.dead(1)[0].message.task == ("" if sealed else "pay")


@RINGS
def test_an_edited_dead_letter_is_protected_again(ring: Keyring, open_queue) -> None:
    """By who holds the keys; it is received after its redrive. Others are refused: no worker would take it."""
    queue, stranger = open_queue(ring), open_queue(NO_KEYS)
    queue.send({"n": 1})
    queue.bury(queue.receive(1)[0])
    [dead_letter] = queue.dead(1)
    with pytest.raises(InvalidOptionError, match="give the keys to edit it"):
        stranger.edit_dead(dead_letter.entry_id, {"n": MARKER})
    made = queue.edit_dead(dead_letter.entry_id, {"n": MARKER})
    assert (
        queue.dead(1)[0].message.body == json.dumps({"n": MARKER}, separators=(",", ":")).encode()
    )
    assert queue.redrive(made) == [made]
    [message] = queue.receive(1)
    assert (message.json(), message.id) == ({"n": MARKER}, dead_letter.message.id)


def test_an_unsigned_dead_letter_is_signed_by_an_edit(open_queue) -> None:
    """So an operator vouches for what another client has sent."""
    queue = open_queue(SIGNING)
    queue.client.run(_push(queue, b'{"n": 1}'))
    assert queue.receive(1) == []
    [dead_letter] = queue.dead(1)
    queue.redrive(dead_letter.entry_id)
    assert queue.receive(1) == []
    [dead_letter] = queue.dead(1)
    queue.redrive(queue.edit_dead(dead_letter.entry_id, {"n": 1}))
    assert queue.receive(1)[0].json() == {"n": 1}


# -- tasks -----------------------------------------------------------------------------------------


@RINGS
def test_tasks_run_and_are_tried_again(ring: Keyring, make_app) -> None:
    """One call and many, batches, a failure that comes back and dies: the handler is given the arguments each time."""
    app, calls = make_app(ring)
    app.tasks["pay"].send("a")
    asyncio.run(_asend(app))
    app.tasks["load"].send_many(app.tasks["load"].call(name) for name in "xyz")
    app.tasks["pay"].send("fail")
    done = drain(app, include_delayed=True, errors="collect")
    assert sorted(calls) == ["a", "b", "c", "fail", "fail", "x", "y", "z"]
    assert (done.handled, done.failed, len(done.dead)) == (6, 2, 1)
    [dead_letter] = done.dead
    assert dead_letter.message.task == "pay"
    # The words of the handler quote its argument: they are not written beside what hides it.
    assert ("cannot pay fail" in dead_letter.error) == (ring is SIGNING)


async def _asend(app: QWorker) -> None:
    pay = app.tasks["pay"]
    await pay.asend("b")
    await pay.asend_many([pay.call("c")])
    await app.aclose()


def test_a_worker_that_requires_signatures_starts_signed_messages_only(
    make_app, open_queue
) -> None:
    """Nothing of an unsigned body is decoded: a wrong one and a right one end alike."""
    app, calls = make_app(SIGNING)
    stranger = open_queue(NO_KEYS)
    stranger.send({"task": "pay", "args": ["unsigned"]})
    stranger.client.run(_push(stranger, b'{"task": "pay", "args": ["plain"]}'))
    stranger.client.run(_push(stranger, b"[not json"))
    app.tasks["pay"].send("signed")
    drain(app)
    assert calls == ["signed"]
    assert reasons(stranger) == ["bad_signature"] * 3


def test_signatures_may_be_accepted_before_they_are_required(make_app, open_queue) -> None:
    """The time in which senders are given their keys: what is not signed runs, what is signed wrongly does not."""
    app, calls = make_app(Keyring(signing={"k1": SECRET}, required=False))
    open_queue(NO_KEYS).send({"task": "pay", "args": ["unsigned"]})
    open_queue(Keyring(signing={"k1": bytes(32)})).send({"task": "pay", "args": ["forged"]})
    drain(app)
    assert calls == ["unsigned"]
    assert reasons(open_queue(NO_KEYS)) == ["bad_signature"]


@pytest.mark.bad_input("data found: unknown codec or key")
def test_a_worker_without_the_key_leaves_the_message_to_others(make_app, open_queue, logs) -> None:
    """Put back uncounted, as a task that it does not know, and dead with its reason if there is no wait."""
    open_queue(SEALING).send({"task": "pay", "args": [MARKER]})
    for ring in (NO_KEYS, Keyring(encryption={"other": SECRET})):
        app, calls = make_app(ring)
        burst(app)
        assert calls == []
        (waiting,) = open_queue(NO_KEYS).peek(10, state="delayed")
        assert (waiting.nacks, waiting.timeouts) == (0, 0)
        make_due(app, "mail")
    app, calls = make_app(NO_KEYS)
    drain(app, include_delayed=True)
    assert calls == []
    assert reasons(open_queue(NO_KEYS)) == ["unknown_key"]
    assert {line["event"] for line in logs} >= {"key_unknown"}
    assert MARKER not in str(logs)


# -- schedules -------------------------------------------------------------------------------------


def test_messages_of_a_schedule_are_signed_by_the_app(
    store_url: str, namespace: str, open_queue
) -> None:
    """The daemon that fires them holds no key; a schedule that another program wrote fires what no worker takes."""
    ran: list[str] = []
    app = QWorker(namespace, url=store_url, keys=BOTH)

    @app.schedule(cron("* * * * *"))
    def sweep() -> None:
        ran.append("sweep")

    schedules = manifest_of(app, ["default"], ["default"]).schedules
    assert schedules["sweep"].signature.startswith("k1.")
    register(app.client, namespace, "jobs", schedules)
    register(app.client, namespace, "other", {"forged": schedules["sweep"]})
    keys = QueueKeys(namespace, "default")
    daemon = Client(ConnectionFactory(store_url))
    # The last minute has not been fired.
    words = ("HSET", keys.schedules, "sweep:fired", 1, "forged:fired", 1)
    daemon.execute(raw(*words, decode=int))
    Reaper(daemon, namespace, tick_ms=1000).tick()
    drain(app)
    assert ran == ["sweep"]
    assert reasons(open_queue(NO_KEYS, "default")) == ["bad_signature"]
    daemon.close()
    app.close()


# -- what stands in Redis --------------------------------------------------------------------------


def test_no_file_of_the_server_has_a_body_that_was_encrypted(
    namespace: str, tmp_path: Path
) -> None:
    """Sent, delayed, received, journalled, failed, buried, edited: the append-only file never has the words."""
    with servers.start("valkey") as server:
        app = QWorker(namespace, url=server.url, keys=BOTH)

        @app.task(queue="mail", max_receives=1)
        def fail(what: str) -> None:
            raise ValueError(what)

        queue = app.queue("mail")
        queue.configure(QueueAttributes(journal="all"))
        queue.send({"body": MARKER}, delay="1h")
        queue.send({"task": "fail", "args": [MARKER]}, priority=9)
        [message] = queue.receive(1)
        queue.bury(message, error="no words of the body")
        queue.edit_dead(queue.dead(1)[0].entry_id, {"task": "fail", "args": [MARKER]})
        fail.send(MARKER)
        drain(app, include_delayed=False, errors="collect")
        assert len(queue.dead(10)) == 2
        app.close()
        with server.redis() as raw:
            journal = b"".join(
                value for _, fields in raw.xrange(queue.keys.journal) for value in fields.values()
            )
            assert b"dead" in journal
        written = b"".join(
            path.read_bytes() for path in Path(server.directory).rglob("*") if path.is_file()
        )
    assert b"a256gcm.k1" in written
    assert MARKER.encode() not in written + journal


@pytest.mark.slow
def test_keys_reach_a_worker_through_a_file(lab_with_keys: Lab) -> None:
    """`qworker run` finds them where its environment says; none appears in its arguments, its log or its journal."""
    lab = lab_with_keys
    lab.app("@app.task\ndef pay(what: str) -> None:\n    note('paid', what)\n")
    queue = Queue(Client(ConnectionFactory(lab.url), keyring=BOTH), lab.namespace, "default")
    queue.send({"task": "pay", "args": [MARKER]})
    with lab.worker() as worker:
        until(lambda: lab.noted("paid") == [[MARKER]])
        arguments = b"".join(
            Path(f"/proc/{pid}/cmdline").read_bytes()
            for pid in (worker.process.pid, *worker.children())
        )
    assert MARKER not in worker.log.read_text()
    assert base64.b64encode(SECRET) not in arguments + worker.log.read_bytes()
    queue.client.close()


@pytest.fixture
def lab_with_keys(
    store_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    secret = base64.b64encode(SECRET).decode()
    path = tmp_path / "keys.toml"
    path.touch(0o600)
    path.write_text(f'[signing]\nk1 = "{secret}"\n[encryption]\nk1 = "{secret}"\n')
    # A configuration file names it, as the environment might: the children learn of it from the worker.
    (tmp_path / "qworker.toml").write_text(f'keys_file = "{path.name}"\n')
    # Started by exec: a forked worker has the arguments of the process that it was forked from.
    lab = Lab(store_url, namespace, tmp_path, warm=False)
    yield lab
    lab.close()
