"""The keeper: leases extended, recalled and settled from outside of the child that holds them."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from structlog.testing import capture_logs

from qworker import QueueAttributes, QWorker
from qworker.client.execute.sync import Client
from qworker.consumer.board.board import Board
from qworker.consumer.board.clock import boot_time
from qworker.consumer.board.counters import TaskCounts
from qworker.consumer.board.states import LeaseState, LeaseView, Mark
from qworker.consumer.manifest import ManifestTask
from qworker.consumer.supervisor.leases.fates import Fate
from qworker.consumer.supervisor.leases.heartbeats import _LONGEST_S
from qworker.consumer.supervisor.leases.lease_keeper import LeaseKeeper
from qworker.consumer.supervisor.leases.postmortem import Death, death_of
from qworker.engine.command import Command
from qworker.engine.raw import raw
from qworker.engine.receive import Batch, settle_receive
from qworker.engine.settle import Outcomes, settle
from qworker.errors import AccessDeniedError, ServerError, UnavailableError
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import QueueKeys
from tests.chaos import ChaosProxy
from tests.consumer.driving import history_of, redis_of, until
from tests.journals import event_lines
from tests.timing import Watch

U, R, D, F, G = Mark.UNSTARTED, Mark.RUNNING, Mark.DONE, Mark.FAILED, Mark.GONE


@dataclass
class Scene:
    """A board with leases of one queue, and a keeper."""

    app: QWorker
    board: Board
    keeper: LeaseKeeper
    keys: QueueKeys

    def receive(
        self,
        slot: int,
        marks: Sequence[Mark],
        visibility_ms: int = 30_000,
        *,
        send: bool = True,
        **options: Any,
    ) -> Batch:
        """Send messages, receive them into one lease, and mark them on the board."""
        queue = self.app.queue("q")
        if send:
            queue.send_many([{"n": n} for n in range(len(marks))], **options)
        lease_id = self.app.client.ids.lease_id()
        self.board.leases.enter(slot, lease_id, 0, visibility_ms / 1000)
        command = settle_receive(self.keys, lease_id, len(marks), visibility_ms=visibility_ms)
        batch = self.app.client.execute(command)
        deadline = boot_time() + visibility_ms / 1000
        self.board.leases.hold(slot, len(batch.items), deadline, visibility_ms / 1000)
        for position, mark in enumerate(marks):
            self.board.leases.mark(slot, position, mark)
        return batch

    def boards(self) -> list[tuple[Board, tuple[QueueKeys, ...]]]:
        return [(self.board, (self.keys,))]

    def recall(self, *slots: int) -> int:
        views = [self.board.leases.view(slot) for slot in slots]
        leases: list[LeaseView] = [view for view in views if view is not None]
        return self.keeper.recall([(self.board, (self.keys,), leases)])

    def settle_dead(self, death: Death) -> int:
        return self.keeper.settle_dead(self.board, (self.keys,), death)

    def counted(self) -> dict[str, int]:
        """What was counted after the messages were received."""
        counted = history_of(self.app.queue("q"))
        return {
            name: number for name, number in counted.items() if name not in ("sent", "received")
        }


@pytest.fixture
def scene(app: QWorker) -> Iterator[Scene]:
    """A board for three handlers, and the queue `q`."""
    app.queue("q").configure(QueueAttributes())
    board = Board.create(3)
    yield Scene(app, board, LeaseKeeper(app.client), QueueKeys(app.namespace, "q"))
    board.close()


# -- extending ---------------------------------------------------------------------------------


def test_a_lease_is_extended_when_a_third_of_it_is_over(scene: Scene) -> None:
    """Nothing is sent before; after it deadline and board move a whole visibility timeout on."""
    scene.receive(0, [R], visibility_ms=12_000)
    first = scene.app.queue("q").inspect().next_deadline_ms
    assert first is not None

    scene.board.leases.set_deadline(0, boot_time() + 12.0)
    scene.keeper.extend_due(scene.boards())
    assert scene.app.queue("q").inspect().next_deadline_ms == first

    time.sleep(0.01)
    scene.board.leases.set_deadline(0, boot_time() + 7.9)
    before = boot_time()
    scene.keeper.extend_due(scene.boards())
    second = scene.app.queue("q").inspect().next_deadline_ms
    assert second is not None
    assert second > first
    assert scene.keeper.extended == 1
    (view,) = scene.board.leases.views()
    assert before + 12.0 <= view.deadline <= boot_time() + 12.0


def test_a_long_lease_is_extended_every_five_seconds(scene: Scene) -> None:
    """However long the visibility timeout, a live consumer is heard of every 5 s: the reaper counts on it."""
    scene.receive(0, [R], visibility_ms=600_000)
    scene.board.leases.set_deadline(0, boot_time() + 600.0)
    scene.keeper.extend_due(scene.boards())
    assert scene.keeper.extended == 0
    scene.board.leases.set_deadline(0, boot_time() + 594.0)
    scene.keeper.extend_due(scene.boards())
    assert scene.keeper.extended == 1


def test_a_lease_is_not_kept_for_ever(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 12 h a lease is no longer extended, whatever its handler does."""
    assert _LONGEST_S == 12 * 3600
    scene.receive(0, [R], visibility_ms=30_000)
    for longest_s in (60.0, 60.0, 0.0, 0.0):
        monkeypatch.setattr("qworker.consumer.supervisor.leases.heartbeats._LONGEST_S", longest_s)
        scene.board.leases.set_deadline(0, boot_time())
        scene.keeper.extend_due(scene.boards())
    assert scene.keeper.extended == 2


@pytest.mark.parametrize("marks", [[R, D], [D, U]], ids=["one runs", "one would start"])
def test_a_lost_lease_is_said_on_the_board(scene: Scene, marks: list[Mark]) -> None:
    """A lease that is gone although the child holds it is marked lost, once."""
    scene.receive(0, marks)
    scene.board.leases.set_deadline(0, boot_time())
    with redis_of(scene.app) as redis:
        redis.delete(scene.keys.unacked)

    for _ in range(2):
        scene.keeper.extend_due(scene.boards())

    assert scene.board.leases.lost(0)
    assert (scene.keeper.lost, scene.keeper.extended) == (1, 0)


@pytest.mark.parametrize("marks", [[D, D], [D, F, G]])
def test_a_lease_that_is_handled_is_not_lost(scene: Scene, marks: list[Mark]) -> None:
    """Where every message has ended, a lease that is gone was settled a moment ago."""
    scene.receive(0, marks)
    scene.board.leases.set_deadline(0, boot_time())
    with redis_of(scene.app) as redis:
        redis.delete(scene.keys.unacked)

    scene.keeper.extend_due(scene.boards())

    assert not scene.board.leases.lost(0)


def test_a_pending_lease_is_not_lost(scene: Scene) -> None:
    """A lease that may not exist yet is looked after and never called lost."""
    scene.board.leases.enter(0, "not-yet", 0, 1.0)
    scene.board.leases.set_deadline(0, boot_time())
    scene.keeper.extend_due(scene.boards())
    assert not scene.board.leases.lost(0)
    assert scene.keeper.lost == 0


def test_a_lease_created_during_an_extension_is_not_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server did not know it when it was asked; the child holds it when the answer comes."""
    scene.board.leases.enter(0, "just-now", 0, 1.0)
    scene.board.leases.set_deadline(0, boot_time())
    client = scene.app.client
    execute = client.execute

    def late(command: Command[object], **options: float) -> object:
        result = execute(command, **options)
        scene.board.leases.hold(0, 2, boot_time() + 30, 30.0)
        return result

    monkeypatch.setattr(client, "execute", late)
    scene.keeper.extend_due(scene.boards())
    assert not scene.board.leases.lost(0)
    assert scene.keeper.lost == 0


def test_a_lease_that_its_child_is_just_noting_is_not_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages are on the board before the state is: until then the lease is pending."""
    scene.board.leases.enter(0, "just-now", 0, 1.0)
    scene.board.leases.hold(0, 2, boot_time(), 30.0)
    scene.board.leases._bytes[scene.board.leases._base(0)] = LeaseState.PENDING
    client = scene.app.client
    execute = client.execute

    def noted(command: Command[object], **options: float) -> object:
        scene.board.leases._bytes[scene.board.leases._base(0)] = LeaseState.HELD
        return execute(command, **options)

    monkeypatch.setattr(client, "execute", noted)
    scene.keeper.extend_due(scene.boards())
    assert not scene.board.leases.lost(0)
    assert scene.keeper.lost == 0


def test_the_next_lease_of_a_slot_is_not_lost_for_the_one_before(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that ends while it is extended is gone by then, and the slot may hold another."""
    batch = scene.receive(0, [R])
    scene.board.leases.set_deadline(0, boot_time())
    client = scene.app.client
    execute = client.execute

    def settled(command: Command[object], **options: float) -> object:
        monkeypatch.undo()
        (view,) = scene.board.leases.views()
        outcomes = Outcomes(view.lease_id)
        outcomes.acks.append(batch.indices[0])
        execute(settle(scene.keys, [outcomes]))
        scene.board.leases.free(0)
        scene.receive(0, [R])
        return execute(command, **options)

    monkeypatch.setattr(client, "execute", settled)
    deadline = boot_time() + 30.0
    scene.keeper.extend_due(scene.boards())
    (view,) = scene.board.leases.views()
    assert not scene.board.leases.lost(0)
    assert view.deadline < deadline + 30.0
    assert (scene.keeper.lost, scene.keeper.extended) == (0, 0)


def test_a_broken_queue_does_not_keep_others_from_being_extended(scene: Scene) -> None:
    """An extension that one queue refuses is logged; leases of the others are extended."""
    scene.receive(0, [R])
    scene.board.leases.enter(1, "broken-1", 1, 30.0)
    scene.board.leases.hold(1, 1, boot_time(), 30.0)
    scene.board.leases.set_deadline(0, boot_time())
    broken = QueueKeys(scene.app.namespace, "broken")
    with redis_of(scene.app) as redis:
        redis.set(broken.unacked, "not ours")

    scene.keeper.extend_due([(scene.board, (scene.keys, broken))])

    assert scene.keeper.extended == 1


def test_more_leases_than_one_call_takes_are_extended(scene: Scene) -> None:
    """Leases of many children are extended in calls of at most 1,000."""
    boards = [Board.create(1) for _ in range(40)]
    try:
        ids = []
        for board in boards:
            for slot in range(board.leases.number):
                ids.append(f"lease-{len(ids)}")
                board.leases.enter(slot, ids[-1], 0, 30.0)
                board.leases.hold(slot, 1, boot_time(), 30.0)
        with redis_of(scene.app) as redis:
            redis.zadd(scene.keys.unacked, dict.fromkeys(ids, 1))
        scene.keeper.extend_due([(board, (scene.keys,)) for board in boards])
        assert scene.keeper.extended == len(ids) == 1320
    finally:
        for board in boards:
            board.close()


@pytest.mark.slow
def test_an_unreachable_server_is_said_and_the_lease_stays_due(scene: Scene) -> None:
    """Where the server does not answer an extension raises soon, and the next try finds the lease still due."""
    scene.receive(0, [R])
    scene.board.leases.set_deadline(0, boot_time())
    with ChaosProxy(scene.app.url) as proxy:
        client = Client(ConnectionFactory(proxy.url, reply_timeout_s=0.3))
        keeper = LeaseKeeper(client)
        proxy.blackhole = True
        watch = Watch(os.getpid())
        with pytest.raises(ServerError):
            keeper.extend_due(scene.boards())
        # A second and the reply that is waited for just then; a settle would try for 20 s.
        assert watch.passed_s() < 18
        assert not scene.board.leases.lost(0)
        proxy.blackhole = False
        until(lambda: _extends(keeper, scene))
        client.close()


def _extends(keeper: LeaseKeeper, scene: Scene) -> bool:
    try:
        keeper.extend_due(scene.boards())
    except ServerError:
        return False
    return keeper.extended == 1


def test_a_node_that_is_away_does_not_keep_others_from_being_extended(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is raised once the leases of the other nodes are extended."""
    away = QueueKeys(scene.app.namespace, "away")
    scene.receive(1, [R])
    scene.board.leases.enter(0, "away-1", 1, 30.0)
    for slot in (0, 1):
        scene.board.leases.hold(slot, 1, boot_time(), 30.0)
    client, factory = scene.app.client, scene.app.client.factory
    execute = client.execute

    def answer(command: Command[object], **options: float) -> object:
        if away.unacked in command.keys:
            raise UnavailableError("no answer")
        return execute(command, **options)

    monkeypatch.setattr(client, "execute", answer)
    monkeypatch.setattr(factory, "last_node", lambda key: ("host", int(key == away.unacked)))
    with pytest.raises(UnavailableError):
        scene.keeper.extend_due([(scene.board, (scene.keys, away))])
    assert scene.keeper.extended == 1


def test_only_a_message_that_runs_is_cancelled_on_the_board(scene: Scene) -> None:
    """An order to cancel one that has not started would end its handler, or the child, at its next start."""
    scene.receive(0, [R, U, D])
    scene.board.leases.set_deadline(0, boot_time())
    with redis_of(scene.app) as redis:
        ids = [message.id for message in scene.app.queue("q").peek(3, state="unacked")]
        redis.zadd(scene.keys.cancelled, dict.fromkeys(ids, 2**42))

    scene.keeper.extend_due(scene.boards())

    (view,) = scene.board.leases.views()
    orders = scene.board.orders
    assert [orders.cancelled_at(view.lease_id, at) is not None for at in range(3)] == [
        True,
        False,
        False,
    ]


# -- recalling ---------------------------------------------------------------------------------


def test_a_recall_gives_back_unstarted_messages(scene: Scene) -> None:
    """Unstarted messages are ready again, uncounted and in order; running and ended ones are left alone."""
    scene.receive(0, [D, R, U, U, F])

    assert scene.recall(0) == 2

    seen = scene.app.queue("q").inspect()
    assert (seen.ready, seen.unacked) == (2, 3)
    assert [message.body for message in scene.app.queue("q").peek()] == [b'{"n":2}', b'{"n":3}']
    assert [message.receives for message in scene.app.queue("q").peek()] == [0, 0]
    (view,) = scene.board.leases.views()
    assert list(view.marks) == [D, R, Mark.RECALLED, Mark.RECALLED, F]
    assert scene.counted()["released"] == 2


def test_a_recall_of_a_lease_whose_reply_was_not_read_gives_back_all(scene: Scene) -> None:
    """A pending lease is given back as a whole, if it was created; the child then finds it recalled."""
    scene.app.queue("q").send_many([1, 2, 3])
    lease_id = scene.app.client.ids.lease_id()
    scene.board.leases.enter(0, lease_id, 0, 30.0)
    scene.app.client.execute(settle_receive(scene.keys, lease_id, 3))
    scene.board.leases.enter(1, "never-made", 0, 30.0)

    assert scene.recall(0, 1) == 3

    assert scene.board.leases.recalled(0)
    seen = scene.app.queue("q").inspect()
    assert (seen.ready, seen.unacked, seen.stats.get("stale", 0)) == (3, 0, 0)


@pytest.mark.parametrize("way", ["recalled", "dead"])
def test_large_messages_of_several_leases_go_back_in_their_order(scene: Scene, way: str) -> None:
    """They are too large for the server to sort them into those that came back before: the latest go first."""
    scene.app.queue("q").send_many([{"n": n, "pad": "x" * 150_000} for n in range(12)])
    for slot in (2, 0, 1):
        scene.receive(slot, [U] * 4, send=False)
    assert scene.recall(0, 1, 2) == 12 if way == "recalled" else scene.settle_dead(Death(-9)) == 0
    order = [json.loads(message.body)["n"] for message in scene.app.queue("q").peek(12)]
    assert order == [*range(12)]


def test_a_recall_leaves_alone_what_has_taken_the_slot_since(scene: Scene) -> None:
    """The keeper may come to a recall late; the lease may have ended by then, and another begun."""
    scene.receive(0, [U])
    (before,) = scene.board.leases.views()
    scene.board.leases.free(0)
    scene.receive(0, [U, U])
    assert scene.keeper.recall([(scene.board, (scene.keys,), [before])]) == 0
    (view,) = scene.board.leases.views()
    assert (view.recalled, list(view.marks)) == (False, [U, U])
    assert scene.app.queue("q").inspect().unacked == 3


@pytest.mark.slow
def test_a_recall_of_many_leases_waits_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for the child's side is one for all leases together."""
    monkeypatch.setattr("qworker.consumer.supervisor.leases.lease_keeper._SEEN_S", 1.0)
    for slot in range(30):
        scene.receive(slot, [U])
    begun, watch = time.monotonic(), Watch(os.getpid())
    assert scene.recall(*range(30)) == 30
    assert time.monotonic() - begun >= 1.0
    assert watch.passed_s() < 15


@pytest.mark.slow
def test_a_message_that_starts_during_a_recall_is_not_given_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was marked running before the child saw the recall stays with it."""
    monkeypatch.setattr("qworker.consumer.supervisor.leases.lease_keeper._SEEN_S", 1.0)
    scene.receive(0, [U, U])

    def start() -> None:
        until(lambda: scene.board.leases.recalled(0))
        scene.board.leases.mark(0, 0, R)

    thread = threading.Thread(target=start)
    thread.start()
    assert scene.recall(0) == 1
    thread.join()
    assert scene.app.queue("q").inspect().unacked == 1


# -- settling for the dead ---------------------------------------------------------------------

ALONE = Death(-11, {(0, 0): None}, ("WorkerDiedError", "it crashed"))


@pytest.mark.parametrize(
    ("marks", "death", "ready", "delayed", "counted"),
    [
        ([D, D], Death(-9), 0, 0, {"acked": 2}),
        ([U, U], Death(-9), 2, 0, {"released": 2}),
        ([G, U], Death(-9), 2, 0, {"released": 2}),
        ([F], Death(-9), 0, 1, {"nacked": 1}),
        ([D, R, U], Death(-9), 2, 0, {"acked": 1, "timeouts": 1, "released": 1}),
        ([R, R, U], Death(-9), 3, 0, {"released": 1, "timeouts": 2}),
        ([R, R, U], ALONE, 3, 0, {"timeouts": 1, "released": 2}),
        ([R, R], Death(-9, {(0, 0): None, (0, 1): None}), 2, 0, {"timeouts": 2}),
        ([R, R, D], Death(-9, stopping=True), 2, 0, {"released": 2, "acked": 1}),
        ([U, U], Death(1, idle_before=True), 2, 0, {"timeouts": 2}),
        ([R, U], Death(1, idle_before=True), 2, 0, {"timeouts": 1, "released": 1}),
        ([D, U], Death(0, stopping=True), 1, 0, {"acked": 1, "released": 1}),
    ],
)
def test_what_a_dead_child_held_goes_where_it_belongs(
    scene: Scene,
    marks: list[Mark],
    death: Death,
    ready: int,
    delayed: int,
    counted: dict[str, int],
) -> None:
    """Done is acked, unstarted released, the guilty counted; who only ran beside goes back, or shares the blame."""
    scene.receive(0, marks)

    assert scene.settle_dead(death) == list(marks).count(R)

    seen = scene.app.queue("q").inspect()
    assert (seen.ready, seen.delayed, seen.unacked) == (ready, delayed, 0)
    stored = {"stored": ready + delayed} if ready + delayed else {}
    assert scene.counted() == {**counted, **stored}


def test_the_guilty_message_is_delivered_alone_from_now_on(scene: Scene) -> None:
    """A message that has cost a worker is a suspect: no message runs beside it again."""
    scene.receive(0, [R, R, U])

    scene.settle_dead(ALONE)

    assert scene.app.queue("q").inspect().suspect == 1


def test_running_messages_of_several_leases_share_the_blame(scene: Scene) -> None:
    """Whether one message ran alone is judged over all leases of the child."""
    scene.receive(0, [R])
    scene.receive(1, [R, U])

    assert scene.settle_dead(Death(-9)) == 2

    assert scene.counted() == {"released": 1, "timeouts": 2, "stored": 3}


def test_a_pending_lease_of_a_dead_child_is_given_back(scene: Scene) -> None:
    """A lease that was created although its reply was never read does not wait for its deadline."""
    scene.app.queue("q").send_many([1, 2])
    lease_id = scene.app.client.ids.lease_id()
    scene.board.leases.enter(0, lease_id, 0, 30.0)
    scene.app.client.execute(settle_receive(scene.keys, lease_id, 2))

    scene.settle_dead(Death(-9))

    seen = scene.app.queue("q").inspect()
    assert (seen.ready, seen.unacked) == (2, 0)
    assert [message.receives for message in scene.app.queue("q").peek()] == [0, 0]


def test_messages_recalled_or_settled_before_the_death_are_not_counted_again(scene: Scene) -> None:
    """Settling for the dead repeats nothing that was settled already."""
    batch = scene.receive(0, [D, U, U])
    scene.recall(0)
    scene.app.client.execute(settle(scene.keys, [Outcomes(batch.lease_id, acks=["1"])]))

    scene.settle_dead(Death(-9))

    assert scene.counted() == {"acked": 1, "released": 2, "stored": 2}


def test_a_handled_message_whose_result_is_lost_has_been_delivered(scene: Scene) -> None:
    """The next handler learns that one has started before it; an unstarted message is as new."""
    scene.receive(0, [Mark.SETTLING, U])

    scene.settle_dead(Death(-9))

    assert [message.receives for message in scene.app.queue("q").peek(2)] == [1, 0]


def test_an_ack_for_the_dead_frees_the_unique_key(scene: Scene) -> None:
    """A handled message of a dead child gives its unique key free, as if the child had told it."""
    queue = scene.app.queue("q")
    first = queue.send({"n": 1}, unique="invoice-7")
    lease_id = scene.app.client.ids.lease_id()
    scene.board.leases.enter(0, lease_id, 0, 30.0)
    scene.app.client.execute(settle_receive(scene.keys, lease_id, 1))
    scene.board.leases.hold(0, 1, boot_time() + 30.0, 30.0)
    scene.board.leases.mark(0, 0, D)

    scene.settle_dead(Death(-9))

    assert queue.send({"n": 1}, unique="invoice-7") != first


def test_an_earlier_timeout_counts_where_the_log_says_whether_it_was_the_last_try(
    scene: Scene,
) -> None:
    """The line about a message that killed its child a second time says that it is dead, and so it is."""
    dead = []
    for first in (True, False):
        scene.receive(0, [R], send=first)
        with capture_logs() as lines:
            scene.settle_dead(Death(-11, {(0, 0): 2}, ("WorkerDiedError", "it crashed")))
        dead += [line["dead"] for line in lines if line["event"] == "message_failed"]

    assert dead == [False, True]
    assert scene.app.queue("q").inspect().dead == 1


@pytest.mark.parametrize(("own", "tasks"), [(1, 2), (2, 1)])
def test_the_max_receives_of_a_message_count_before_those_of_its_task(
    scene: Scene, own: int, tasks: int
) -> None:
    """Where the log says whether it was the last try, as where the message goes."""
    scene.receive(0, [R], max_receives=own)
    with capture_logs() as lines:
        scene.settle_dead(Death(-11, {(0, 0): tasks}, ("WorkerDiedError", "it crashed")))

    (line,) = [line for line in lines if line["event"] == "message_failed"]
    assert line["dead"] is (own == 1)
    assert scene.app.queue("q").inspect().dead == (own == 1)


@pytest.mark.parametrize(
    ("lease_of_note", "item", "named"),
    [
        ("", b"q1 m-1 1700000000000 2 0 0 0\n{}", ("m-1", 3, "b")),
        ("", b'{"task": "b"}', ("{lease}.0", 1, "b")),
        ("", b"\0" * 8, (None, None, "")),
        ("L-77", b"q1 m-1 1700000000000 2 0 0 0\n{}", (None, None, "")),
    ],
)
def test_a_message_acked_before_its_start_is_named_from_the_board(
    scene: Scene, lease_of_note: str, item: bytes, named: tuple[str | None, int | None, str]
) -> None:
    """Unless what stands there is of an earlier lease, or was written by a handler that has run wild."""
    batch = scene.receive(0, [R])
    scene.app.client.execute(settle(scene.keys, [Outcomes(batch.lease_id, acks=["0"])]))
    scene.board.acked.note(0, lease_of_note or batch.lease_id, [(0, 1, item)])

    with capture_logs() as lines:
        scene.settle_dead(Death(-9, {(0, 0): 2}, tasks={"a": ("q", "a"), "b": ("q", "b")}))

    (line,) = [line for line in lines if line["event"] == "message_failed"]
    message_id, receive_count, task = named
    expected = message_id and message_id.format(lease=batch.lease_id)
    assert (line["message_id"], line["receive_count"], line["task"]) == (
        expected,
        receive_count,
        task,
    )


@pytest.mark.parametrize(
    ("mark", "acked", "lost"),
    [(G, True, True), (U, True, True), (U, False, False), (D, True, False)],
    ids=["its ack counted", "its ack was on its way", "its ack did not arrive", "it had ended"],
)
def test_a_message_that_was_acked_and_did_not_start_any_more_is_reported_lost(
    scene: Scene, mark: Mark, acked: bool, lost: bool
) -> None:
    """Nothing else would tell: it is in no lease, and it did not run. The log names it, and the metrics count it."""
    batch = scene.receive(0, [mark, R])
    if acked:
        scene.app.client.execute(settle(scene.keys, [Outcomes(batch.lease_id, acks=["1"])]))
    scene.board.acked.note(0, batch.lease_id, [(0, 0, b"q1 m-1 1700000000000 2 0 0 0\n{}")])
    death = Death(-9, tasks={"a": ("q", "a")}, pid=7)
    fates: list[Fate] = []
    keeper = LeaseKeeper(scene.app.client, note_fates=fates.extend)

    with capture_logs() as lines:
        keeper.settle_dead(scene.board, (scene.keys,), death)

    told = [line for line in lines if line["event"] == "messages_lost"]
    assert [(line["message_ids"], line["tasks"], line["pid"]) for line in told] == [
        (["m-1"], ["a"], 7)
    ] * lost
    assert [fate.outcome for fate in fates if fate.lost] == ["crashed"] * lost


@pytest.mark.parametrize(("task", "counted"), [("a", [("q", "a")]), ("elsewhere", [])])
def test_only_messages_of_the_childs_own_tasks_are_counted_for_it(
    scene: Scene, task: str, counted: list[tuple[str, str]]
) -> None:
    """The child counts no others either: the names of tasks that anybody may send are not labels of metrics."""
    scene.app.queue("q").send({"task": task, "args": []})
    scene.receive(0, [D], send=False)
    fates: list[Fate] = []
    keeper = LeaseKeeper(scene.app.client, note_fates=fates.extend)
    keeper.settle_dead(scene.board, (scene.keys,), Death(-9, tasks={"a": ("q", "a")}))
    assert [fate.counted_as for fate in fates] == counted


def test_the_guilty_message_is_dead_at_its_tasks_limit_with_the_reason(scene: Scene) -> None:
    """A crash counts against the task's max receives, and the dead letter says how the process ended."""
    scene.receive(0, [R, D])

    scene.settle_dead(Death(-11, {(0, 0): 1}, ("WorkerDiedError", "was ended by signal 11")))

    (dead_letter,) = scene.app.queue("q").dead()
    assert (dead_letter.reason, dead_letter.error_class) == ("max_receives", "WorkerDiedError")
    assert dead_letter.error == "was ended by signal 11"


def test_a_queue_that_cannot_be_settled_is_left_to_expire(scene: Scene) -> None:
    """A broken queue costs the dead child's other queues nothing."""
    scene.receive(0, [D])
    other = QueueKeys(scene.app.namespace, "other")
    scene.board.leases.enter(1, "broken-1", 1, 30.0)
    scene.board.leases.hold(1, 1, boot_time() + 30, 30.0)
    with redis_of(scene.app) as redis:
        redis.set(other.stats, "not ours")

    scene.keeper.settle_dead(scene.board, (scene.keys, other), Death(-9))

    assert scene.counted() == {"acked": 1}


FORBIDDEN, AWAY = AccessDeniedError("forbidden"), UnavailableError("no answer")


@pytest.mark.parametrize(
    ("error", "refused", "stale", "counted"),
    [
        (AWAY, "HGETALL", 1, {"acked": 1, "released": 1, "stored": 1}),
        (AWAY, "EVALSHA", 1, {"acked": 1, "released": 1, "stored": 1}),
        (FORBIDDEN, "HGETALL", 1, {"released": 1, "stored": 2, "unacked": 1}),
        (FORBIDDEN, "EVALSHA", 0, {"stored": 2, "unacked": 2}),
    ],
)
def test_a_dead_childs_lease_is_settled_later_if_its_node_may_be_back(
    scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
    error: ServerError,
    refused: str,
    stale: int,
    counted: dict[str, int],
) -> None:
    """A worker that stops waits for that. A command that is forbidden will be in 20 s as well."""
    scene.receive(0, [D, Mark.SETTLING])
    scene.board.tally.add(0, TaskCounts.none(), [scene.board.leases.marks_at(0) + 1], 0)
    client, keeper = scene.app.client, scene.keeper
    monkeypatch.setattr(keeper, "_clustered", True)
    execute = client.execute

    def refuse(command: Command[object], **options: float) -> object:
        if (command.args[0] == "HGETALL") is (refused == "HGETALL"):
            raise error
        return execute(command, **options)

    with monkeypatch.context() as patched:
        patched.setattr(client, "execute", refuse)
        scene.settle_dead(Death(-9))
    assert keeper.unsettled is (error is AWAY)
    keeper.settle_again()
    assert not keeper.unsettled
    assert scene.counted() == counted
    assert keeper.stale == stale


def test_a_large_lease_is_settled_in_one_go(scene: Scene) -> None:
    """A thousand messages in any mixture of marks are settled."""
    marks = [Mark(n % 2 * 2) for n in range(1000)]
    scene.receive(0, marks)

    scene.settle_dead(Death(-9))

    assert scene.counted() == {"acked": 500, "released": 500, "stored": 500}


def test_leases_of_an_unknown_queue_are_left_alone(scene: Scene) -> None:
    """A child that died before its manifest came has nothing that could be settled."""
    scene.board.leases.enter(0, "x-1", 0, 30.0)
    scene.keeper.extend_due([(scene.board, ())])
    assert scene.keeper.settle_dead(scene.board, (), Death(1)) == 0
    command: Command[int] = raw("ZCARD", scene.keys.unacked, decode=int)
    assert scene.app.client.execute(command) == 0


def test_the_journal_gets_the_times_on_the_board(scene: Scene) -> None:
    """Who settles for the dead, when they received it, what ran since when; and of what had ended, the task."""
    queue = scene.app.queue("q")
    queue.configure(QueueAttributes(journal="outcomes"))
    tasks = [ManifestTask("mail", "q", is_async=False, max_receives=9, batch=0, max_wait_s=0)]
    queue.send({"task": "done", "args": []}, unique="k")
    batch = scene.receive(0, [D, D, R, U, F])
    delivered = boot_time() - 5
    scene.board.leases.note_delivered(0, delivered, batch.now_ms)
    scene.board.running.begin(0, 0, 2, 0, delivered + 2, 0.0)
    keeper = LeaseKeeper(scene.app.client, caller="host:7")

    keeper.settle_dead(scene.board, (scene.keys,), death_of(scene.board, tasks, -9))

    with redis_of(scene.app) as redis:
        ((_, fields),) = redis.xrange(scene.keys.journal)
    assert fields[b"w"] == b"host:7"
    reports = {}
    for line in event_lines(fields[b"e1"]):
        event, received, started, run_us, task, reason, error, header = line.split(" ", 7)
        assert int(received) == batch.now_ms
        reports.setdefault((event, task, reason, error), []).append((started, run_us))
        assert any(item.startswith(f"q1 {header}\n".encode()) for item in batch.items)
    ((started, run_us),) = reports.pop(("timed_out", "mail", "crashed", "WorkerDiedError"))
    assert int(started) == batch.now_ms + 2000
    assert 3_000_000 <= int(run_us) < 60_000_000
    assert reports == {
        ("nacked", "-", "-", "-"): [("-", "-")],
        ("released", "-", "-", "-"): [("-", "-")],
        ("acked", "done", "-", "-"): [("-", "-")],
        ("acked", "-", "-", "-"): [("-", "-")],
    }


def test_the_journal_gets_the_acks_that_counted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those that the child had sent, and that arrive after its lease was read."""
    queue = scene.app.queue("q")
    queue.configure(QueueAttributes(journal="outcomes"))
    for name in ("plain", "unique", "late"):
        unique = name if name == "unique" else None
        queue.send({"task": name, "args": []}, unique=unique)
    batch = scene.receive(0, [D, D, D], send=False)
    scene.board.leases.note_delivered(0, boot_time(), batch.now_ms)
    client = scene.app.client
    execute = client.execute

    def late(command: Command[object], **options: float) -> object:
        result = execute(command, **options)
        if command.args[0] == "HGETALL":
            execute(settle(scene.keys, [Outcomes(batch.lease_id, acks=["1", "3"])]))
        return result

    monkeypatch.setattr(client, "execute", late)
    scene.settle_dead(Death(-9))

    with redis_of(scene.app) as redis:
        (_, fields) = redis.xrange(scene.keys.journal)[-1]
    (line,) = event_lines(fields[b"e1"])
    assert line.split(" ")[4] == "unique"
