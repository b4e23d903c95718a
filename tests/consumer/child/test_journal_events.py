"""What a child tells the journal of its deliveries, and the server's time in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qworker import QWorker, Retry
from qworker.app.context import running
from qworker.consumer.board.board import Board
from qworker.consumer.board.clock import boot_time
from qworker.consumer.child.handlers.endings import Endings
from qworker.consumer.child.handlers.preparation import Preparer
from qworker.consumer.child.handlers.runner import Runner
from qworker.consumer.child.handlers.unrunnable import Patience
from qworker.consumer.child.leases.batch_size import QueueState
from qworker.consumer.child.leases.board_slots import ChildLeases
from qworker.consumer.child.leases.delivery import Delivery
from qworker.consumer.child.leases.ending_kinds import ACKED
from qworker.consumer.child.leases.server_clock import ServerClock
from qworker.consumer.child.settle.journal_events import acked_unstarted, take_acked, times_of
from qworker.consumer.child.settle.stats import HandlerStats
from qworker.engine.receive import Batch
from qworker.wire.keys import QueueKeys
from tests.journals import event_lines, told_times

NOW_MS = 1_800_000_000_000
OWN = b"q1 abc 1799999999000 0 0 0 0"
BODY = b'\n{"task":"shop.mail","args":[1]}'
OTHER = b'\n{"task":"fail","args":[1]}'


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.create(2)
    yield board
    board.close()


def batch(*items: bytes, now_ms: int = NOW_MS) -> Batch:
    """A batch in the lease `L`, in a queue whose journal is on."""
    return Batch(
        lease_id="L",
        items=list(items),
        indices=[str(index) for index in range(1, len(items) + 1)],
        now_ms=now_ms,
        deadline_ms=now_ms + 30_000,
        ready_left=0,
        hint_ms=0,
        alone=False,
        degraded=False,
        settled=(),
        journal=True,
    )


def deliveries(board: Board, *items: bytes) -> list[Delivery]:
    """Deliveries of a held lease, received at `NOW_MS`."""
    leases = ChildLeases(board)
    return leases.hold(
        leases.enter(QueueState(QueueKeys("test", "mail"), 0, visibility_s=30.0), "L"),
        batch(*items),
    )


@pytest.fixture(autouse=True)
def _own_context() -> Iterator[None]:
    """Handlers run in the thread of the test here, and leave their message in it."""
    token = running.set(None)
    yield
    running.reset(token)


def runner(board: Board) -> Runner:
    """A runner of tasks that return, fail and fail for good."""
    app = QWorker("test")

    @app.task(name="shop.mail")
    def mail(n: int) -> None: ...

    @app.task(name="fail", retry=Retry.none())
    def fail(n: int) -> None:
        raise LookupError

    numbers = {name: number for number, name in enumerate(sorted(app.tasks))}
    endings = Endings(
        board,
        [],
        lambda queue: 5,
        lambda value, queue, message_id: value,
        lambda then, value, **about: ("out",),
        (patience := Patience(0)),
    )
    preparer = Preparer(app.tasks, numbers, board, endings, patience=patience, clock=boot_time)
    return Runner(app.tasks, numbers, board, [], endings, preparer, clock=boot_time)


def journalled(board: Board, found: list[Delivery]) -> list[list[str]]:
    """The events of acked messages as the journal gets them, in words."""
    numbers = {"shop.mail": 0, "fail": 1}
    stats = HandlerStats(board, numbers)
    for each in found:
        stats.note(each)
    stats.learn(found[0].lease)
    groups = take_acked(found[0].lease)
    lines = [event_lines(text) for _, text in groups]
    assert [number for number, _ in groups] == [len(each) for each in lines]
    return [line.split(" ", 7) for some in lines for line in some]


def ended(board: Board, *items: bytes) -> list[Delivery]:
    """Messages that have run, each 2 s after the one before it, each a ms longer."""
    found, run, begun = deliveries(board, *items), runner(board).run, boot_time()
    for number, each in enumerate(found):
        run(0, each, begun)
        each.started, each.took_s = begun + 2 * number, 0.001 * (number + 1)
    return found


AGAIN = b"q1 abd 1799999999000 1 1 0 0 f=5 t=1799999999500"


@pytest.mark.parametrize(
    ("item", "header"),
    [
        (OWN + BODY, OWN[3:]),
        (OWN + b" p=5 t=1799999999500 w=a%20b" + BODY, OWN[3:] + b" p=5 t=1799999999500 w=a%20b"),
        (b"q1 a.b-c 5 3 2 1 0 f=6" + BODY, b"a.b-c 5 3 2 1 0 f=6"),
        (BODY[1:], b"L.1 1800000000000 0 0 0 0"),
    ],
)
def test_the_event_of_an_acked_message(board: Board, item: bytes, header: bytes) -> None:
    """Event, times, task, no reason, no error, and the header as it was received; a plain item is named here."""
    (delivery,) = ended(board, item)
    delivery.took_s = 0.0012345

    ((event, delivered, started, run_us, *rest),) = journalled(board, [delivery])

    assert (event, int(delivered), run_us) == ("acked", NOW_MS, "1234")
    assert NOW_MS <= int(started) < NOW_MS + 2000
    assert rest == ["shop.mail", "-", "-", header.decode()]


def test_the_events_of_a_batch(board: Board) -> None:
    """First deliveries and others, of one task or of several: each has its own header and its own times."""
    found = ended(board, OWN + BODY, AGAIN + BODY, BODY[1:], OWN + b" w=x" + BODY)

    events = journalled(board, found)

    assert [words[7] for words in events] == [
        OWN[3:].decode(),
        AGAIN[3:].decode(),
        "L.3 1800000000000 0 0 0 0",
        OWN[3:].decode() + " w=x",
    ]
    assert [words[3] for words in events] == ["1000", "2000", "3000", "4000"]
    first = int(events[0][2])
    assert [abs(int(words[2]) - first - 2000 * n) <= 1 for n, words in enumerate(events)] == [
        True
    ] * 4
    assert take_acked(found[0].lease) == []


def test_tasks_are_kept_apart(board: Board) -> None:
    """A group has one task; what failed is none of it."""
    mails = ended(board, OWN + BODY, OWN + OTHER, BODY[1:], OWN + BODY)
    mails[3].kind = ACKED
    mails[3].task = mails[1].task

    events = journalled(board, mails)

    assert [(words[4], words[7].split(" ")[0]) for words in events] == [
        ("shop.mail", "abc"),
        ("shop.mail", "L.3"),
        ("fail", "abc"),
    ]


def test_a_group_has_16_kibibytes_at_most(board: Board) -> None:
    """What exceeds that is reported in several; a header that does alone is cut."""
    long = OWN + b" w=" + b"x" * 9000
    found = ended(board, *[long + BODY] * 3, OWN + b" w=" + b"x" * 20_000 + BODY)
    stats = HandlerStats(board, {"shop.mail": 0, "fail": 1})
    for each in found:
        stats.note(each)
    stats.write()

    groups = take_acked(found[0].lease)

    assert [number for number, _ in groups] == [1, 1, 1, 1]
    assert max(len(text) for _, text in groups) == 16_384
    assert event_lines(groups[2][1])[0].endswith(long[3:].decode())


def test_what_is_acked_before_its_start(board: Board) -> None:
    """At most once: neither a start nor a running time is known, and the order is the caller's."""
    found = deliveries(board, OWN + BODY, OWN + OTHER, BODY[1:])
    run = runner(board)
    for each in found:
        assert run.prepare(each)

    assert [event_lines(text) for _, text in acked_unstarted(found)] == [
        [f"acked {NOW_MS} - - shop.mail - - {OWN[3:].decode()}"],
        [f"acked {NOW_MS} - - fail - - {OWN[3:].decode()}"],
        [f"acked {NOW_MS} - - shop.mail - - L.3 {NOW_MS} 0 0 0 0"],
    ]


def test_times_of_messages_that_never_started(board: Board) -> None:
    """What was found wrong before its handler has no start and no running time, and no task if that is unknown."""
    unknown, foreign, unread = deliveries(
        board, OWN + b'\n{"task":"other","args":[]}', b"hello\nworld", OWN + BODY
    )
    run = runner(board).run
    for each in (unknown, foreign):
        run(0, each, boot_time())

    assert [times_of(each) for each in (unknown, foreign, unread)] == [f"{NOW_MS} - -"] * 3


def test_the_times_of_a_failure(board: Board) -> None:
    """For what the script writes the child says when it was delivered and begun, how long it ran, and its task."""
    (delivery,) = deliveries(board, OWN + OTHER)
    runner(board).run(0, delivery, boot_time())
    delivery.started, delivery.took_s = delivery.lease.delivered + 2.5, 0.25

    assert times_of(delivery) == told_times(f"{NOW_MS} {NOW_MS + 2500} 250000 fail")


# -- the server's clock ------------------------------------------------------------------------


def test_the_servers_time_lies_between_call_and_reply() -> None:
    """A narrow window says when it was at once."""
    clock = ServerClock()

    assert 9.999 <= clock.note(1_000_000, called=10.0, answered=10.001) <= 10.001


def test_a_wide_window_corrects_only_contradictions() -> None:
    """A reply that waited to be read, or a call that waited at a doorbell, does not spoil what is known."""
    clock = ServerClock()
    clock.note(1_000_000, called=10.0, answered=10.001)

    assert 10.999 <= clock.note(1_001_000, called=11.0, answered=15.0) <= 11.001  # read late
    assert (
        17.999 <= clock.note(1_008_000, called=16.0, answered=18.001) <= 18.001
    )  # waited before it ran


@pytest.mark.bad_input("time or host: clocks of clients a day off")
def test_a_clock_that_jumps_is_followed() -> None:
    """After a failover or a correction of the server's clock its new time counts."""
    clock = ServerClock()
    clock.note(1_000_000, called=10.0, answered=10.001)

    assert 10.999 <= clock.note(900_000, called=11.0, answered=11.001) <= 11.001
    assert 11.999 <= clock.note(2_000_000, called=12.0, answered=12.001) <= 12.001


def test_nothing_begins_before_it_was_delivered(board: Board) -> None:
    """Wherever the server's clock has gone between two batches, a message is delivered before its reply is read."""
    leases, queue = ChildLeases(board), QueueState(QueueKeys("test", "mail"), 0, visibility_s=30.0)
    for now_ms in (NOW_MS, NOW_MS - 60_000, NOW_MS + 60_000):
        pending = leases.enter(queue, "L")
        (delivery,) = leases.hold(pending, batch(OWN + BODY, now_ms=now_ms))
        assert pending.begun - 0.002 < delivery.lease.delivered <= boot_time()
        delivery.lease.open = 0
        leases.free_if_settled(delivery.lease)
