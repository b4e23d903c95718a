"""How a queue is divided stands in the queue itself: whatever is lost or late, every send finds a shard."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from qworker import QWorker
from qworker.client.execute.sync import Client
from qworker.client.manage.limits import remove_limit, set_limit
from qworker.client.manage.reshard import divide
from qworker.client.manage.shard_upkeep import give_up_empty, tend
from qworker.client.placement import store_placed
from qworker.client.plan import run_plan
from qworker.client.queue import Queue
from qworker.daemon.reaper import Reaper
from qworker.engine import shards as commands
from qworker.engine.command import Brief, Pause
from qworker.engine.groups import limits
from qworker.engine.options import SendOptions
from qworker.engine.send import NewMessage
from qworker.errors import (
    BrokenQueueError,
    InDoubtError,
    ShardDrainingError,
    ShardsChangedError,
)
from qworker.wire.keys import QueueKeys, workers_key
from qworker.wire.presence import AHEAD_MS, WorkerDocument
from qworker.wire.shards import WHOLE, ReshardMark, Shards
from tests.consumer.driving import redis_of
from tests.topologies.servers import client_of


@pytest.fixture
def queue(app: QWorker) -> Queue:
    """A queue of four shards."""
    queue = app.queue("orders")
    queue.divide(4, wait=0)
    return queue


def other(queue: Queue) -> Queue:
    """The queue as a client sees it that knows nothing."""
    return Queue(queue.client, queue.ref.namespace, "orders")


def shard(queue: Queue, number: int) -> Queue:
    """One shard alone."""
    return Queue(queue.client, queue.ref.namespace, f"orders/{number}")


def shard_of(queue: Queue, number: int) -> QueueKeys:
    """The keys of a shard."""
    return queue.ref.shard_of(number).keys


def marks_of(queue: Queue) -> list[ReshardMark]:
    """What the shards but the first one say of themselves."""
    keys = [shard(queue, number).keys for number in range(1, 6)]
    return [queue.client.execute(commands.read_mark(key)) for key in keys]


def stands(queue: Queue) -> Shards:
    """What the queue says of its shards."""
    return queue.client.execute(commands.read_shards(queue.keys))


def sends(queue: Queue, number: int = 24) -> int:
    """Send messages, each by a call; returns how many of them a fresh client receives."""
    for n in range(number):
        queue.send({"n": n})
    receiver, got = other(queue), 0
    # A receive leaves out a shard that does not answer soon, as on a busy machine: where some lack, ask again.
    while messages := receiver.receive(100, wait=0 if got >= number else "10s"):
        got += len(receiver.ack(*messages))
    return got


def steps(client: Client, plan: Generator[Any, Any, Any]) -> Generator[Any, None, Any]:
    """Run a plan step by step; each step is yielded before it is made."""
    result: Any = None
    try:
        step = plan.send(None)
        while True:
            yield step
            if isinstance(step, Pause):
                result = None
            elif isinstance(step, Brief):
                result = client.briefly(step)
            else:
                result = client.execute(step)
            step = plan.send(result)
    except StopIteration as end:
        return end.value


def script_of(step: Any) -> str:
    """The script of a step of a plan; '' of others."""
    script = getattr(step, "script", None)
    return "" if script is None else str(script.name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (6, 1),
        *(
            pytest.param(
                first,
                second,
                marks=pytest.mark.nightly("test_of_two_divisions_at_once_the_later_one_holds"),
            )
            for first, second in ((1, 6), (2, 1), (5, 6))
        ),
    ],
)
def test_of_two_divisions_at_once_the_later_one_holds(
    queue: Queue, first: int, second: int
) -> None:
    """Wherever the first one is halfway when the second one begins: no active shard refuses what is sent."""
    for stop in range(60):
        queue.divide(4, wait=0)
        running = steps(queue.client, divide(queue.ref, first, wait=0))
        done = False
        for at, _ in enumerate(running):
            if at == stop:
                break
        else:
            done = True
        other(queue).divide(second, wait=0)
        try:
            for _ in running:
                pass
            holds = {first, second}  # The first one asked only now, or was done before.
        except ShardsChangedError:
            holds = {second}
        division = stands(queue)
        assert division.active in holds
        for number, mark in enumerate(marks_of(queue), 1):
            assert mark.open == (number < division.active), (stop, division, mark)
        assert sends(other(queue), 6) == 6
        if done:
            break


def test_a_division_gives_up_where_others_divide_all_the_time(queue: Queue) -> None:
    """It says by which error, and how many shards there are."""

    def meddle() -> None:
        division = stands(queue)
        queue.client.execute(commands.divide(queue.keys, division, division.active, division.kept))

    def run() -> None:
        for step in steps(queue.client, divide(queue.ref, 2, wait=0)):
            if script_of(step) == "divide":
                meddle()

    with pytest.raises(
        ShardsChangedError, match="'orders' is being resharded by another client and has 4"
    ):
        run()


def test_shards_have_their_attributes_before_workers_hear_of_them(app: QWorker) -> None:
    """A message sent to a new shard finds the limits of its queue there."""
    queue = app.queue("orders")
    queue.create(maxlen=3)
    made: list[str] = []
    for step in steps(app.client, divide(queue.ref, 2, wait=0)):
        if script_of(step) == "divide":
            made.append(shard(queue, 1).inspect().meta.get("maxlen", ""))
    assert made
    assert set(made) == {"3"}


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("c=2", id="changed"),
        pytest.param(
            "",
            marks=pytest.mark.nightly(
                "test_limits_that_change_beside_a_division_hold_in_all_shards"
            ),
            id="removed",
        ),
    ],
)
@pytest.mark.parametrize("first", ["division", "limit"])
@pytest.mark.slow
def test_limits_that_change_beside_a_division_hold_in_all_shards(
    app: QWorker, first: str, words: str
) -> None:
    """Wherever the first one is halfway when the other one is made."""
    for stop in itertools.count():
        queue = app.queue(f"orders{stop}")
        queue.set_limit("acme/*", concurrency=3)
        queue.set_limit("b", concurrency=1)
        change = (
            set_limit(queue.ref, "acme/*", concurrency=2)
            if words
            else remove_limit(queue.ref, "acme/*")
        )
        divided = Queue(app.client, queue.ref.namespace, queue.keys.name)
        plans = [divide(divided.ref, 2, wait=0), change]
        running, meanwhile = plans if first == "division" else reversed(plans)
        met = False
        for at, _ in enumerate(steps(app.client, running)):
            if at == stop:
                met = True
                list(steps(app.client, meanwhile))
        if not met:
            break
        wanted = {"b": "c=1"} | ({"acme/*": words} if words else {})
        assert [app.client.execute(limits(shard_of(queue, n))) for n in (0, 1)] == 2 * [wanted], (
            stop
        )


@pytest.mark.parametrize("field", ["", "rubbish", "1 1 1", "4 4 1"])
def test_a_client_restores_a_lost_division(queue: Queue, field: str) -> None:
    """A failover of the first shard's node loses the last division: a sender, or a receiver, finds it in the shards."""
    queue.divide(2, wait=0)
    sender, receiver = other(queue), other(queue)
    sender.send({"n": 0})
    receiver.receive(1)
    with redis_of_queue(queue) as raw:
        for client in (sender, receiver):
            raw.hdel(queue.keys.meta, "shards")
            if field:
                raw.hset(queue.keys.meta, "shards", field)
            client.ref.doubt()
            if client is sender:
                client.send({"n": 1})
            else:
                client.receive(1)
            assert (stands(queue).active, stands(queue).kept) in ((2, 2), (2, 4))
    assert sends(other(queue)) >= 24


def test_a_lost_division_comes_back_with_the_shards_that_it_empties(queue: Queue) -> None:
    """The newest of their marks counts, as a node that was away keeps an older one; each is read until it is empty."""
    first = stands(queue)
    for n in range(8):
        queue.send({"n": n})
    queue.divide(2, wait=0)
    lost = stands(queue)
    assert (lost.active, lost.kept) == (2, 4)
    knowing = other(queue)
    knowing.send({"n": 8})
    with redis_of_queue(queue) as raw:
        raw.hset(shard_of(queue, 2).meta, "shard", f"open 4 {first.epoch}")
        raw.hdel(queue.keys.meta, "shards")
    knowing.ref.doubt()
    knowing.receive(1)
    assert stands(queue) == lost


def test_a_shard_that_refuses_a_send_is_kept_by_the_queue_that_it_heals(queue: Queue) -> None:
    """The queue has forgotten all its divisions, and messages of the last shard are received all the same."""
    for n in range(8):
        queue.send({"n": n})
    late = other(queue)
    late.ref.learn(stands(queue))
    queue.divide(1, wait=0)
    lost = stands(queue)
    assert (lost.active, lost.kept) == (1, 4)
    with redis_of_queue(queue) as raw:
        raw.hdel(queue.keys.meta, "shards")
    late.ref.turns = itertools.count(3)
    late.send({"n": 8})
    assert stands(queue) == lost


def test_only_a_look_that_need_not_be_sure_takes_known_shards(queue: Queue) -> None:
    """A receive does without the node of the queue; what is found nowhere is not there only if all were asked."""
    queue.ref.learn(stands(queue))
    for sure in (True, False):
        plan = queue.ref.look_up(sure=sure)
        assert isinstance(next(plan), Brief) is not sure
        plan.close()


def test_a_shard_that_leaves_a_send_in_doubt_has_its_turns_last(queue: Queue) -> None:
    """The next sends do not wait for its node again."""
    queue.ref.learn(stands(queue))
    queue.ref.turns = itertools.count(1)
    plan = store_placed(queue.ref, [NewMessage("m", b"\n{}")], SendOptions())
    call = plan.send(None)
    assert call.key == shard_of(queue, 1).meta
    with pytest.raises(InDoubtError):
        plan.throw(InDoubtError("no reply"))
    assert [queue.ref.in_turn()[-1] for _ in range(4)] == [1, 1, 1, 1]


def redis_of_queue(queue: Queue) -> Any:
    """A plain client of the server of a queue, or of its Cluster."""
    factory = queue.client.factory
    return client_of(factory.url.revealed()) if factory.clustered else factory.redis()


def test_a_send_opens_a_shard_that_lost_its_mark(queue: Queue) -> None:
    """With the attributes of its queue, and nothing is refused; sent to by its name, it takes no message before."""
    queue.change(maxlen=1000)
    lost = shard(queue, 2)
    with redis_of_queue(queue) as raw:
        raw.delete(lost.keys.meta)
        with pytest.raises(ShardDrainingError, match="'orders/2' is not open"):
            lost.send({"n": 0})
        assert sends(other(queue)) == 24
        assert raw.hget(lost.keys.meta, "maxlen") == b"1000"
    assert marks_of(queue)[1] == ReshardMark(True, 4, stands(queue).epoch)


def test_a_shard_that_knows_of_a_later_division_heals_its_queue(queue: Queue) -> None:
    """A queue whose node lost the division into fewer shards learns of it from the first send that is refused."""
    before = stands(queue)
    queue.divide(1, wait=0)
    with redis_of_queue(queue) as raw:
        raw.hset(queue.keys.meta, "shards", f"{before.active} {before.kept} {before.epoch}")
    assert sends(other(queue)) == 24
    assert stands(queue).active == 1


def test_old_divisions_of_clients_do_not_affect_a_new_queue(queue: Queue) -> None:
    """The new queue is whole, for all of them; nothing is stored where no consumer receives, and nothing is refused."""
    knowing = other(queue)
    knowing.send({"n": 0})
    assert knowing.ref.shards.active == 4
    queue.remove()
    other(queue).send({"n": 1})
    assert sends(knowing) == 25
    assert stands(queue) == WHOLE
    assert sends(other(queue)) == 24
    with redis_of_queue(queue) as raw:
        assert not [*raw.scan_iter(f"{queue.ref.namespace}:{{orders/*")]


@pytest.mark.parametrize("written", ["1 1 999999999999999", "64 64 5", "open", "4 4 7"])
def test_what_stands_in_the_index_changes_no_queue(queue: Queue, written: str) -> None:
    """Even if others may write there: sends and receives follow the queue."""
    with redis_of_queue(queue) as raw:
        raw.hset(f"{queue.ref.namespace}:queues", "orders", written)
        assert sends(other(queue)) == 24
        assert queue.division().active == 4
        raw.delete(f"{queue.ref.namespace}:queues")
        raw.set(f"{queue.ref.namespace}:queues", "x")
        fresh = other(queue)
        assert sends(fresh) == 24
        fresh.pause("in")
        fresh.resume()
        assert fresh.divide(2, wait=0).active == 2


def test_an_invalid_division_is_replaced(queue: Queue) -> None:
    """A producer can write into the meta of its own queue: an epoch of the future counts as none, and divides again."""
    with redis_of_queue(queue) as raw:
        raw.hset(queue.keys.meta, "shards", "1 1 999999999999999")
        for number in (1, 2):
            raw.hset(shard(queue, number).keys.meta, "shard", "draining 1 999999999999999")
    division = other(queue).divide(4, wait=0)
    assert division.active == 4
    assert all(mark.epoch < 10**14 for mark in marks_of(queue))
    assert sends(other(queue)) == 24


def test_a_shard_that_takes_sends_is_not_given_up(queue: Queue) -> None:
    """After a failover the queue may have forgotten the division that opened an empty shard."""
    known = stands(queue)
    with redis_of_queue(queue) as raw:
        raw.hset(queue.keys.meta, "shards", f"3 4 {known.epoch}")
        raw.hset(shard(queue, 3).keys.meta, "shard", f"open 4 {known.epoch + 1}")
    assert not run_plan(queue.client.execute, give_up_empty(other(queue).ref))
    assert stands(queue).kept == 4


@pytest.mark.parametrize("what", ["dead letter", "lease"])
def test_a_shard_is_kept_for_what_is_no_message_of_it_any_more(queue: Queue, what: str) -> None:
    """A dead letter, and a lease that counters do not know of."""
    with redis_of_queue(queue) as raw:
        if what == "lease":
            raw.zadd(shard(queue, 3).keys.unacked, {"lost-1": 2**50})
        else:
            raw.xadd(shard(queue, 3).keys.dead, {"m": "q1 a 1 0 0 0 0\nx"})
    other(queue).divide(1, wait=0)
    assert (stands(queue).active, stands(queue).kept) == (1, 4)


def test_a_broken_shard_harms_only_itself(queue: Queue) -> None:
    """Sends go to the others; what has a unique key, whose shard is the broken one, is refused by its name."""
    with redis_of_queue(queue) as raw:
        broken = shard(queue, 2)
        raw.delete(broken.keys.ready[0])
        raw.set(broken.keys.ready[0], "x")
        sender = other(queue)
        for n in range(24):
            sender.send({"n": n})
        rest = [shard(queue, number).inspect().ready for number in (0, 1, 3)]
        assert sum(rest) == 24
        seen = sender.inspect()
        assert (seen.queue, seen.ready) == ("orders", 24)
        [unread] = seen.unread
        assert unread.startswith("orders/2: ")
        unique = next(key for key in map(str, range(99)) if sender.ref.shards.of_key(key) == 2)
        with pytest.raises(BrokenQueueError):
            sender.send({"n": 1}, unique=unique)


def test_a_reaper_restores_a_forgotten_division(app: QWorker, queue: Queue) -> None:
    """By the marks of its shards; and where these are lost too, messages in them are received and run empty."""
    queue.send_many([{"n": n} for n in range(4)])
    for number in range(4):
        shard(queue, number).send({"n": number})
    reaper = Reaper(app.client, app.namespace)
    with redis_of(app) as raw:
        raw.hdel(queue.keys.meta, "shards")
        look(reaper)
        look(reaper)
        assert stands(queue).active == 4
        raw.hdel(queue.keys.meta, "shards")
        for number in range(4):
            raw.hdel(shard(queue, number).keys.meta, "shard")
        look(reaper)
        assert stands(queue).kept == 1
        look(reaper)
        assert (stands(queue).active, stands(queue).kept) == (1, 4)
    got = other(queue).receive(100)
    assert len(got) == 8
    other(queue).ack(*got)
    look(reaper)
    assert stands(queue).kept == 1
    reaper.close()


def look(reaper: Reaper) -> None:
    """Let a reaper maintain the shards now, though it has done so a moment ago."""
    reaper._shards._check_at = float("-inf")
    reaper.tick()


def test_a_send_learns_how_its_queue_is_divided_from_its_reply(app: QWorker) -> None:
    """That of the first shard tells, so who sends all the time never asks."""
    queue = app.queue("orders")
    queue.send({"n": 0})
    knowing = other(queue)
    knowing.send({"n": 1})
    assert knowing.ref.shards == WHOLE
    queue.divide(3, wait=0)
    knowing.send({"n": 2})
    assert knowing.ref.shards == stands(queue)
    queue.divide(1, wait=0)
    for _ in range(4):
        knowing.send({"n": 3})
    assert knowing.ref.shards.active == 1


def test_a_send_to_a_later_shard_leaves_what_is_known_of_the_queue(queue: Queue) -> None:
    """Its reply tells nothing of the other shards: the next send need not read them again."""
    queue.ref.learn(stands(queue))
    queue.ref.turns = itertools.count(1)
    for n in range(3):
        queue.send({"n": n})
        assert queue.ref.shards == stands(queue)
        assert not queue.ref.stale


def test_a_reply_that_comes_late_brings_back_no_older_division(queue: Queue) -> None:
    """Of two sends at once the slower may tell what the faster has found to be over: the next use reads the shards."""
    queue.send({"n": 1})
    known = queue.ref.shards
    queue.ref.learn_from_send(replace(known, active=1, kept=1, epoch=known.epoch - 1))
    assert queue.ref.shards == known
    assert queue.ref.stale
    queue.ref.learn_from_send(replace(known, epoch=known.epoch + 1))
    assert queue.ref.shards.epoch == known.epoch + 1


def alive_for_long(raw: Any) -> bytes:
    """The document of a worker that counts as alive for minutes; later ones are from before a clock was set back."""
    seen_ms = raw.time()[0] * 1000 + AHEAD_MS // 2
    return msgspec.json.encode(
        WorkerDocument(seen_ms=seen_ms, queues=("orders",), shards=("orders",))
    )


@pytest.fixture
def deaf_worker(app: QWorker) -> Iterator[None]:
    """A worker of the queue that never looks at its shards again, as a stopped one does."""
    with redis_of(app) as raw:
        raw.hset(workers_key(app.namespace), "deaf", alive_for_long(raw))
        yield
        raw.hdel(workers_key(app.namespace), "deaf")


@pytest.mark.usefixtures("deaf_worker")
def test_new_shards_stay_while_their_client_waits_for_workers(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a worker takes, and however often reapers maintain empty shards: the client dates them anew."""
    monkeypatch.setattr("qworker.client.manage.reshard._RENEW_S", 0)
    queue = app.queue("orders")
    pauses, written_ms = 0, 0
    for step in steps(app.client, divide(queue.ref, 3, wait="10m")):
        if isinstance(step, Pause):
            pauses += 1
            given_up, _ = run_plan(app.client.execute, tend(other(queue).ref, [0, 1, 2], set()))
            assert not given_up
            known = stands(queue)
            assert (known.active, known.kept) == (1, 3)
            assert known.epoch > written_ms
            written_ms = known.epoch
            if pauses == 7:
                with redis_of_queue(queue) as raw:
                    raw.hdel(workers_key(app.namespace), "deaf")
    assert pauses == 7
    assert (stands(queue).active, stands(queue).kept) == (3, 3)
    assert sends(other(queue)) == 24


@pytest.mark.usefixtures("deaf_worker")
def test_a_client_that_waits_for_workers_ends_if_another_number_is_asked_for(
    app: QWorker,
) -> None:
    """A larger one, or that of today, "stay as you are": the shards stay as the later client wants them."""
    queue = app.queue("orders")
    for asked in (6, 1):
        queue.divide(1, wait=0)
        waiting = steps(app.client, divide(queue.ref, 3, wait="10m"))
        for step in waiting:
            if isinstance(step, Pause):
                break
        other(queue).divide(asked, wait=0)
        with redis_of_queue(queue) as raw:
            raw.hdel(workers_key(app.namespace), "deaf")
        with pytest.raises(ShardsChangedError, match=f"has {asked} shards now"):
            next(step for step in waiting if script_of(step) == "mark")
        assert stands(queue).active == asked
        assert sends(other(queue)) == 24
        with redis_of(app) as raw:
            raw.hset(workers_key(app.namespace), "deaf", alive_for_long(raw))


@pytest.mark.usefixtures("deaf_worker")
def test_a_client_that_waits_for_workers_does_not_bring_back_a_removed_queue(app: QWorker) -> None:
    """It was removed meanwhile."""
    queue = app.queue("orders")
    waiting = steps(app.client, divide(queue.ref, 3, wait="10m"))
    for step in waiting:
        if isinstance(step, Pause):
            break
    other(queue).remove()
    with redis_of(app) as raw:
        raw.hdel(workers_key(app.namespace), "deaf")
    with pytest.raises(ShardsChangedError):
        for _ in waiting:
            pass
    assert stands(queue) == WHOLE


@pytest.mark.usefixtures("deaf_worker")
@pytest.mark.slow
def test_two_clients_that_ask_for_the_same_number_both_have_it(app: QWorker) -> None:
    """A deployment runs the command on several hosts."""
    queue = app.queue("orders")
    waiting = steps(app.client, divide(queue.ref, 3, wait="20s"))
    for step in waiting:
        if isinstance(step, Pause):
            break
    assert other(queue).divide(3, wait=0).active == 3
    for _ in waiting:
        pass
    assert (stands(queue).active, stands(queue).kept) == (3, 3)


@pytest.mark.usefixtures("deaf_worker")
def test_new_shards_of_a_client_that_died_are_given_up(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a minute after it wrote them last."""
    queue = app.queue("orders")
    for step in steps(app.client, divide(queue.ref, 3, wait="10m")):
        if isinstance(step, Pause):
            break
    kept = []
    for age_ms in (30_000, 0):
        monkeypatch.setattr("qworker.client.manage.shard_upkeep._ABANDONED_MS", age_ms)
        run_plan(app.client.execute, tend(other(queue).ref, [0, 1, 2], set()))
        kept.append(stands(queue).kept)
    assert kept == [3, 1]


@pytest.mark.parametrize("by", ["the division", "a reaper"])
def test_totals_of_a_shard_whose_removal_was_cut_off_are_kept_when_it_is_used_again(
    queue: Queue, by: str
) -> None:
    """Its remover has taken them, and died before it added them to those of the queue."""
    sends(queue)
    execute, sent = queue.client.execute, other(queue).inspect().stats["sent"]
    _, known = execute(commands.divide(queue.keys, stands(queue), 1, 4))
    execute(commands.mark(shard(queue, 3).keys, known))
    taken = execute(commands.retire(shard(queue, 3).keys, queue.client.ids.lease_id()))
    assert taken.totals
    assert other(queue).inspect().stats["sent"] < sent
    if by == "the division":
        other(queue).divide(4, wait=0)
    else:
        _, known = execute(commands.divide(queue.keys, known, 4, 4))
        for number in (1, 2, 3):
            execute(commands.mark(shard(queue, number).keys, known))
    for _ in "once", "and not again":
        if by == "a reaper":
            run_plan(execute, tend(other(queue).ref, [1, 2, 3], set()))
        assert other(queue).inspect().stats["sent"] == sent
