"""Schedules: how they are stored, which slots fire, and that each fires once however many reapers there are."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from qworker.app.schedule import Schedule, cron, every
from qworker.client.execute.sync import Client
from qworker.daemon.known_schedules import READ_S
from qworker.daemon.reaper import Reaper
from qworker.daemon.schedule_listing import ListedSchedule, list_schedules
from qworker.daemon.scheduler import LOOK_MS, Scheduler
from qworker.daemon.schedules import find_scheduled, register
from qworker.daemon.slots import MAX_MISSED, ON_TIME_MS, due_slots
from qworker.daemon.tick import Tick
from qworker.engine.settle import Outcomes
from qworker.errors import InvalidNameError, ServerError
from qworker.store.connections import ConnectionFactory
from qworker.wire.envelope import Envelope
from qworker.wire.keys import QueueKeys
from qworker.wire.schedule import StoredSchedule
from tests import servers
from tests.daemon.conftest import events
from tests.lua.drive import Drive
from tests.timing import Clock

OpenQueue = Callable[..., Drive]
HOUR_MS = 3_600_000
#: A whole hour, ms.
NOON = 1_767_268_800_000


def new(name: str, schedule: Schedule, **options: Any) -> dict[str, StoredSchedule]:
    """A schedule of queue a."""
    fields = {
        "app": "app", "task": f"do_{name}", "queue": "a", "body": '{"task": "do"}', **options
    }  # fmt: skip
    return {name: StoredSchedule(spec=schedule.spec, **fields)}


def ms(text: str) -> int:
    """Milliseconds of an ISO time with its offset."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


class TestDueSlots:
    def test_a_slot_on_its_time_fires_with_every_policy(self) -> None:
        """What was not missed does not depend on the policy."""
        for missed in ("skip", "once", "all"):
            schedule = every("1h", missed=missed)
            assert due_slots(schedule, NOON - HOUR_MS, NOON + 5) == ([NOON], None)
            assert due_slots(schedule, NOON, NOON + HOUR_MS - 1) == ([], None)

    def test_skip_drops_slots_noticed_too_late(self) -> None:
        """A minute of lateness is forgiven: a daemon may be replaced meanwhile."""
        schedule = every("1h", missed="skip")
        fired = NOON - 10 * HOUR_MS
        assert due_slots(schedule, fired, NOON + ON_TIME_MS) == ([NOON], None)
        assert due_slots(schedule, fired, NOON + ON_TIME_MS + 1) == ([], NOON)

    def test_once_fires_the_last_one(self) -> None:
        """However many slots were missed, one message is sent."""
        schedule = every("1h", missed="once")
        assert due_slots(schedule, NOON - 10 * HOUR_MS, NOON + HOUR_MS - 1) == ([NOON], None)

    def test_all_fires_each_up_to_a_bound(self) -> None:
        """Every missed slot fires in order, the latest hundred at most."""
        schedule = every("1h", missed="all")
        slots = [NOON - 2 * HOUR_MS, NOON - HOUR_MS, NOON]
        assert due_slots(schedule, NOON - 3 * HOUR_MS, NOON) == (slots, None)
        many, _ = due_slots(schedule, 0, NOON)
        assert many == [NOON - HOUR_MS * back for back in range(MAX_MISSED - 1, -1, -1)]

    def test_spring_and_autumn(self) -> None:
        """A daily time that the clock skips is one slot after the gap; one in the hour that comes twice is one slot."""
        daily = cron("30 2 * * *", tz="Europe/Vienna", missed="all")
        spring, _ = due_slots(daily, ms("2026-03-28T12:00+01:00"), ms("2026-03-30T12:00+02:00"))
        assert spring == [ms("2026-03-29T03:00+02:00"), ms("2026-03-30T02:30+02:00")]
        autumn, _ = due_slots(daily, ms("2026-10-24T12:00+02:00"), ms("2026-10-26T12:00+01:00"))
        assert autumn == [ms("2026-10-25T02:30+02:00"), ms("2026-10-26T02:30+01:00")]


class TestRegister:
    def test_writes_the_set_of_an_app(
        self, client: Client, namespace: str, open_queue: OpenQueue
    ) -> None:
        """Each schedule is a JSON under its name, noted as fired now, and its queue is registered."""
        redis = open_queue("a", registered=False).redis
        done = register(
            client,
            namespace,
            "shop.tasks",
            new(
                "s",
                cron("*/5 * * * *", tz="Europe/Vienna"),
                app="shop.tasks",
                priority=4,
                ttl_ms=0,
                max_receives=2,
            ),
        )
        assert (done.added, done.changed, done.removed) == (("s",), (), ())
        stored = redis.hgetall(QueueKeys(namespace, "a").schedules)
        assert json.loads(stored[b"s"]) == {
            "app": "shop.tasks",
            "spec": "cron */5 * * * * tz=Europe/Vienna missed=once",
            "task": "do_s",
            "queue": "a",
            "body": '{"task": "do"}',
            "priority": 4,
            "ttl_ms": 0,
            "max_receives": 2,
        }
        seconds, micros = redis.time()
        assert 0 <= seconds * 1000 + micros // 1000 - int(stored[b"s:fired"]) < 60_000
        assert redis.hgetall(f"{namespace}:queues") == {b"a": b"1"}

    def test_again_changes_nothing(
        self, client: Client, namespace: str, open_queue: OpenQueue
    ) -> None:
        """A worker that starts again leaves the last fired slots as they are."""
        redis, key = open_queue("a").redis, QueueKeys(namespace, "a").schedules
        register(client, namespace, "app", new("s", every("1h")))
        redis.hset(key, "s:fired", 5)
        before = redis.hgetall(key)
        assert register(client, namespace, "app", new("s", every("1h"))).changed == ()
        assert redis.hgetall(key) == before

    def test_changed_times_begin_now_and_other_changes_do_not(
        self, client: Client, namespace: str, open_queue: OpenQueue
    ) -> None:
        """Only a schedule whose times are others forgets what it had missed."""
        redis, key = open_queue("a").redis, QueueKeys(namespace, "a").schedules
        register(client, namespace, "app", new("s", every("1h")))
        redis.hset(key, "s:fired", 5)
        for same_times in (new("s", every("1h"), body="{}"), new("s", every("1h", missed="all"))):
            assert register(client, namespace, "app", same_times).changed == ("s",)
            assert redis.hget(key, "s:fired") == b"5"
        register(client, namespace, "app", new("s", every("2h")))
        assert int(redis.hget(key, "s:fired")) > NOON - 10**11

    def test_removes_schedules_that_the_app_has_dropped(
        self, client: Client, namespace: str, open_queue: OpenQueue
    ) -> None:
        """Schedules of the same app that are gone, or moved to another queue, go; those of others stay."""
        redis = open_queue("a").redis
        register(client, namespace, "other", new("mine", every("1h"), app="other"))
        register(
            client,
            namespace,
            "app",
            new("s", every("1h")) | new("t", every("1h")) | new("u", every("1h"), queue="b"),
        )
        done = register(client, namespace, "app", new("t", every("1h"), queue="b"))
        assert (set(done.removed), done.added) == ({"s", "t", "u"}, ("t",))
        fields = {
            name: set(redis.hkeys(QueueKeys(namespace, name).schedules)) for name in ("a", "b")
        }
        assert fields == {"a": {b"mine", b"mine:fired"}, "b": {b"t", b"t:fired"}}
        register(client, namespace, "app", {})
        assert not redis.exists(QueueKeys(namespace, "b").schedules)

    def test_broken_queue_of_another_app_stops_nothing(
        self, client: Client, namespace: str, open_queue: OpenQueue
    ) -> None:
        """A queue whose schedules are of another type has none; others are registered and listed."""
        broken = open_queue("b")
        broken.redis.set(broken.keys.schedules, "x")
        assert register(client, namespace, "app", new("s", every("1h"))).added == ("s",)
        assert [schedule.name for schedule in list_schedules(client, namespace)] == ["s"]
        with pytest.raises(ServerError):
            register(client, namespace, "app", new("s", every("1h"), queue="b"))

    def test_refuses_bad_names_before_anything_is_written(
        self, client: Client, namespace: str, open_queue: OpenQueue
    ) -> None:
        """A set with a wrong name is refused whole."""
        redis = open_queue("a").redis
        right = new("s", every("1h"))
        for wrong in (new("a:b", every("1h")), new("t", every("1h"), queue="A")):
            with pytest.raises(InvalidNameError):
                register(client, namespace, "app", right | wrong)
        assert not redis.exists(QueueKeys(namespace, "a").schedules)

    def test_finds_the_few_queues_that_have_schedules(
        self, client: Client, namespace: str, open_queue: OpenQueue
    ) -> None:
        """Among many queues those with schedules are found by halves."""
        redis = open_queue("a").redis
        queues = [QueueKeys(namespace, f"q{number:04}") for number in range(1200)]
        wanted = [queues[0], queues[499], queues[500], queues[1199]]
        for keys in wanted:
            redis.hset(keys.schedules, "s", "{}")
        assert find_scheduled(client.execute, queues) == wanted
        assert find_scheduled(client.execute, []) == []
        redis.delete(*(keys.schedules for keys in wanted))


class TestList:
    def test_tells_next_and_last_slot(
        self, client: Client, namespace: str, open_queue: OpenQueue
    ) -> None:
        """A schedule that has not fired has no last slot; one that cannot be read says so."""
        redis, key = open_queue("a").redis, QueueKeys(namespace, "a").schedules
        register(client, namespace, "app", new("s", every("366d")) | new("t", every("1h")))
        redis.hset(key, "s:fired", 12_345)
        redis.hset(key, "t:fired", NOON)
        redis.hset(key, mapping={"u": "nonsense", "v": '{"app": "x"}'})
        wrong = json.loads(redis.hget(key, "s")) | {"spec": "cron * * * * * tz=Mars/A missed=once"}
        redis.hset(key, "w", json.dumps(wrong))
        s, t, u, v, w = list_schedules(client, namespace)
        year_ms = 366 * 24 * HOUR_MS
        assert s == ListedSchedule(
            "s", "a", "app", "do_s", "every 366d missed=once", s.next_ms, None,
            app_seen_ms=s.app_seen_ms,
        )  # fmt: skip
        assert s.next_ms is not None
        assert s.next_ms % year_ms == 0
        assert t.last_ms == NOON
        assert (u.name, u.queue, u.problem) == ("u", "a", "it cannot be read")
        assert (v.problem, v.next_ms) == ("it cannot be read", None)
        assert w.problem.startswith("tz: 'Mars/A' is not a time zone")


class Fleet:
    """Reapers of one queue at given times: the queue's schedule fires on the hour."""

    def __init__(self, client: Client, namespace: str, queue: Drive, clock: Clock) -> None:
        self.queue = queue
        self.client = client
        self.namespace = namespace
        self.clock = clock
        self.key = queue.keys.schedules

    def schedule(self, schedule: Schedule, fired_ms: int, name: str = "s", **options: Any) -> None:
        register(self.client, self.namespace, "app", new(name, schedule, **options))
        self.queue.redis.hset(self.key, f"{name}:fired", fired_ms)

    def reaper(self) -> Reaper:
        return Reaper(self.client, self.namespace, clock=self.clock)

    @property
    def sent(self) -> list[Envelope]:
        items = self.queue.redis.lrange(self.queue.keys.ready[0], 0, -1)
        return [message for item in items if (message := Envelope.parse(item)) is not None]

    @property
    def fired_ms(self) -> int:
        return int(self.queue.redis.hget(self.key, "s:fired"))


@pytest.fixture
def fleet(client: Client, namespace: str, open_queue: OpenQueue, clock: Clock) -> Fleet:
    """A queue, and reapers for it."""
    return Fleet(client, namespace, open_queue("a"), clock)


def test_fires_at_the_slot_and_returns_the_next_one(fleet: Fleet) -> None:
    """Before the slot a pass reports when to wake; at the slot it sends the message once."""
    fleet.schedule(every("1h"), NOON - HOUR_MS, max_receives=3)
    reaper = fleet.reaper()
    before = reaper.tick(NOON - 1)
    assert (before.fired, before.next_wake_ms) == ({}, NOON)
    tick = reaper.tick(NOON + 5)
    assert tick.fired == {("a", "do_s"): 1}
    assert (tick.next_wake_ms, tick.lateness_ms) == (NOON + HOUR_MS, 5)
    assert reaper.tick(NOON + 6).fired == {}
    (message,) = fleet.sent
    assert (message.body, message.flags, message.sent_ms) == (
        b'{"task": "do"}',
        {"m": "3"},
        NOON + 5,
    )
    assert fleet.fired_ms == NOON


@pytest.mark.slow
def test_many_reapers_fire_a_slot_once(fleet: Fleet, store_url: str) -> None:
    """Eight reapers at the same moment, each with its own connections: one message per slot, and one says so."""
    fleet.schedule(every("1h", missed="all"), NOON - 20 * HOUR_MS)
    clients = [Client(ConnectionFactory(store_url)) for _ in range(8)]
    reapers = [Reaper(client, fleet.namespace) for client in clients]
    gate, fired = threading.Barrier(len(reapers)), []

    def race(reaper: Reaper) -> None:
        gate.wait()
        fired.extend(reaper.tick(NOON).fired.values())

    threads = [threading.Thread(target=race, args=(reaper,)) for reaper in reapers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for client in clients:
        client.close()
    assert sum(fired) == len(fleet.sent) == 20
    assert fleet.fired_ms == NOON


@pytest.mark.parametrize(("missed", "sent"), [("skip", 0), ("once", 1), ("all", 5)])
def test_missed_slots_by_policy(
    fleet: Fleet, missed: Any, sent: int, logs: list[dict[str, object]]
) -> None:
    """After five slots without a reaper: none, one or all of them, and afterwards the next slot as ever."""
    fleet.schedule(every("1h", missed=missed), NOON - 5 * HOUR_MS)
    late = fleet.reaper().tick(NOON + HOUR_MS // 2)
    assert sum(late.fired.values()) == len(fleet.sent) == sent
    assert late.skipped == (missed == "skip")
    assert fleet.fired_ms == NOON
    assert len(events(logs, "schedule_skipped")) == (missed == "skip")
    other = fleet.reaper()
    assert other.tick(NOON + HOUR_MS).fired == {("a", "do_s"): 1}
    assert len(fleet.sent) == sent + 1


def test_first_registration_fires_nothing_of_the_past(fleet: Fleet) -> None:
    """A schedule that was just written waits for its next slot, whatever its policy."""
    register(fleet.client, fleet.namespace, "app", new("s", every("1h", missed="all")))
    noted_ms = fleet.fired_ms
    reaper = fleet.reaper()
    assert reaper.tick(noted_ms + 1).fired == {}
    next_ms = (noted_ms // HOUR_MS + 1) * HOUR_MS
    assert reaper.tick(next_ms).fired == {("a", "do_s"): 1}


def test_schedule_written_by_another_program_begins_now(fleet: Fleet) -> None:
    """Without a last slot nothing of the past fires either."""
    fleet.schedule(every("1h", missed="all"), NOON)
    fleet.queue.redis.hdel(fleet.key, "s:fired")
    reaper = fleet.reaper()
    assert reaper.tick(NOON + 5).fired == {}
    assert reaper.tick(NOON + HOUR_MS).fired == {("a", "do_s"): 1}


@pytest.mark.bad_input("time or host: clock forward a day")
def test_clock_that_was_a_day_ahead_silences_no_schedule(fleet: Fleet, clock: Clock) -> None:
    """Right again, it names times that have not fired since: the next one does, for old and new reapers, and once."""
    fleet.schedule(every("1h", missed="all"), NOON - HOUR_MS)
    reaper, fired = fleet.reaper(), []
    for now_ms in (NOON, NOON + 24 * HOUR_MS, NOON + 5, NOON + HOUR_MS):
        fired.append(sum(reaper.tick(now_ms).fired.values()))
        clock.now_s += READ_S
    assert fired == [1, 24, 0, 1]
    assert fleet.fired_ms == NOON + HOUR_MS

    fleet.queue.redis.hset(fleet.key, "s:fired", NOON + 24 * HOUR_MS)
    other = fleet.reaper()
    assert [other.tick(now_ms).fired for now_ms in (NOON + HOUR_MS, NOON + 2 * HOUR_MS)] == [
        {},
        {("a", "do_s"): 1},
    ]
    assert reaper.tick(NOON + 2 * HOUR_MS).fired == {}


@pytest.mark.bad_input("time or host: clock back an hour within a pass")
def test_clock_that_goes_back_an_hour_fires_nothing_twice(fleet: Fleet, clock: Clock) -> None:
    """What has fired stays so until the time has come again."""
    fleet.schedule(every("1h"), NOON - HOUR_MS)
    reaper, fired = fleet.reaper(), []
    for now_ms in (NOON, NOON - HOUR_MS, NOON - 1, NOON + 5, NOON + HOUR_MS):
        fired.append(len(reaper.tick(now_ms).fired))
        clock.now_s += READ_S
    assert fired == [1, 0, 0, 0, 1]


def test_paused_queue_keeps_the_slot(fleet: Fleet, logs: list[dict[str, object]]) -> None:
    """While sends pause the slot waits, logged once a minute, and fires when the queue is open again."""
    fleet.schedule(every("1h"), NOON - HOUR_MS)
    fleet.queue.redis.hset(fleet.queue.keys.meta, "paused", "in")
    reaper = fleet.reaper()
    for number in range(3):
        tick = reaper.tick(NOON + number)
        assert (tick.fired, tick.errors, tick.more) == ({}, 1, False)
    assert [line["schedule"] for line in events(logs, "schedule_refused")] == ["s"]
    fleet.queue.redis.hdel(fleet.queue.keys.meta, "paused")
    assert reaper.tick(NOON + 9).fired == {("a", "do_s"): 1}


def test_full_server_keeps_the_slot() -> None:
    """Over maxmemory nothing is sent, and the pass does not fail."""
    with servers.start("valkey") as server:
        queue = Drive(server.url, "n", "a")
        register(queue.client, "n", "app", new("s", every("1h")))
        queue.redis.hset(queue.keys.schedules, "s:fired", NOON - HOUR_MS)
        queue.redis.config_set("maxmemory", 1)
        reaper = Reaper(queue.client, "n")
        assert reaper.tick(NOON).errors == 1
        queue.redis.config_set("maxmemory", 0)
        assert reaper.tick(NOON + 1).fired == {("a", "do_s"): 1}
        queue.close()


def test_changed_and_removed_schedules_are_noticed(fleet: Fleet) -> None:
    """Within five seconds a reaper follows the stored schedules; an outdated one never fires."""
    fleet.schedule(every("1h"), NOON - HOUR_MS)
    reaper = fleet.reaper()
    reaper.tick(NOON - 10)
    fleet.schedule(every("1h"), NOON - HOUR_MS, body='{"task": "new"}')
    assert reaper.tick(NOON).fired == {}
    assert fleet.sent == []
    fleet.clock.now_s += 5
    reaper.tick(NOON + 1)
    assert [message.body for message in fleet.sent] == [b'{"task": "new"}']
    fleet.queue.redis.delete(fleet.key)
    fleet.clock.now_s += 5
    assert reaper.tick(NOON + HOUR_MS).fired == {}


def test_new_queue_with_schedules_is_found_in_time(fleet: Fleet) -> None:
    """Schedules that are registered while a reaper runs are found within five seconds, or at once after `forget`."""
    reaper = fleet.reaper()
    reaper.tick(NOON - 10)
    fleet.schedule(every("1h"), NOON - HOUR_MS)
    assert reaper.tick(NOON).fired == {}
    reaper.scheduler.known.forget()
    assert reaper.tick(NOON).fired == {("a", "do_s"): 1}


@pytest.mark.bad_input("data found: nonsense in other tables")
def test_unreadable_and_broken_schedules_stop_nothing(
    fleet: Fleet, open_queue: OpenQueue, logs: list[dict[str, object]]
) -> None:
    """Schedules that others wrote and a key of another type are logged; the others fire."""
    fleet.schedule(every("1h"), NOON - HOUR_MS)
    task = new("s", every("1h"), task="a b")["s"].encode()
    deep = b'{"x":' + b"[" * 100_000
    fleet.queue.redis.hset(
        fleet.key, mapping={"bad": "{}", "worse": b"\xff", "deep": deep, "task": task}
    )
    broken = open_queue("b")
    broken.redis.set(broken.keys.schedules, "x")
    tick = fleet.reaper().tick(NOON)
    assert tick.fired == {("a", "do_s"): 1}
    assert tick.broken == {"b"}
    assert {line["schedule"] for line in events(logs, "schedule_unreadable")} == {
        "bad",
        "worse",
        "deep",
        "task",
    }


def test_priority_and_time_to_live_reach_the_message(fleet: Fleet) -> None:
    """A schedule's message goes to its level, with its own expiry."""
    fleet.schedule(every("1h"), NOON - HOUR_MS, priority=4, ttl_ms=1000)
    fleet.reaper().tick(NOON)
    (item,) = fleet.queue.redis.lrange(fleet.queue.keys.ready[4], 0, -1)
    message = Envelope.parse(item)
    assert message is not None
    assert message.flags == {"x": str(NOON + 1000), "p": "4"}


class TestOverlap:
    """Slots on the hour, while the message of the first one has not ended."""

    @staticmethod
    def held(fleet: Fleet, **policies: Any) -> tuple[Reaper, str]:
        """A reaper that has fired the first slot, and the id of its message."""
        fleet.schedule(every("1h", **policies), NOON - HOUR_MS)
        reaper = fleet.reaper()
        assert reaper.tick(NOON).fired == {("a", "do_s"): 1}
        return reaper, fleet.sent[0].id

    @staticmethod
    def end(fleet: Fleet, message_id: str, at: int, lease: str = "L") -> None:
        """Ack the message, received if it still waits."""
        if not fleet.queue.redis.exists(fleet.queue.keys.unacked):
            fleet.queue.receive(lease, at=at)
        acks = Outcomes(lease)
        acks.uniques = ["0", "schedule:s", message_id]
        assert fleet.queue.settle(acks, at=at)

    def test_skipped_slots_fire_no_more(self, fleet: Fleet, logs: list[dict[str, object]]) -> None:
        """Whatever `missed` says; the next slot after the end fires. Other reapers skip the slot once."""
        reaper, first = self.held(fleet, overlap="skip", missed="all")
        for hour in (1, 2):
            ticks = [one.tick(NOON + hour * HOUR_MS) for one in (reaper, fleet.reaper())]
            assert [(tick.fired, tick.skipped) for tick in ticks] == [({}, 1), ({}, 0)]
        assert {line["running"] for line in events(logs, "schedule_skipped")} == {first}
        self.end(fleet, first, NOON + 2 * HOUR_MS)
        assert reaper.tick(NOON + 3 * HOUR_MS - 1).fired == {}
        assert reaper.tick(NOON + 3 * HOUR_MS).fired == {("a", "do_s"): 1}

    @pytest.mark.parametrize(("missed", "number"), [("once", 1), ("all", 3)])
    def test_queued_slots_follow_each_other(self, fleet: Fleet, missed: Any, number: int) -> None:
        """Those that passed meanwhile are missed ones: one of them fires after the end, or each after the other."""
        reaper, message_id = self.held(fleet, overlap="queue", missed=missed)
        now = NOON + 3 * HOUR_MS + 5
        for late_ms in (0, LOOK_MS):
            tick = reaper.tick(now + late_ms)
            assert (tick.fired, tick.skipped, tick.next_wake_ms) == ({}, 0, now + late_ms + LOOK_MS)
        shown = list_schedules(fleet.client, fleet.namespace)[0]
        assert (shown.running, shown.waits) == (message_id, True)
        now += LOOK_MS
        for turn in range(number):
            self.end(fleet, message_id, now, f"L{turn}")
            now += LOOK_MS
            assert reaper.tick(now).fired == {("a", "do_s"): 1}
            (message_id,) = (message.id for message in fleet.sent)
        self.end(fleet, message_id, now, "last")
        assert reaper.tick(now + LOOK_MS).fired == {}
        assert fleet.fired_ms == NOON + 3 * HOUR_MS

    def test_running_message_is_cancelled_and_the_slot_follows_its_end(self, fleet: Fleet) -> None:
        """The worker meets the tombstone; one that its handler did not meet goes with the slot's message."""
        queue = fleet.queue
        reaper, first = self.held(fleet, overlap="cancel")
        queue.receive("L", at=NOON + 5)
        for late_ms in (0, LOOK_MS):
            assert reaper.tick(NOON + HOUR_MS + late_ms).fired == {}
            assert queue.redis.zrange(queue.keys.cancelled, 0, -1) == [first.encode()]
        self.end(fleet, first, NOON + HOUR_MS + LOOK_MS)
        assert reaper.tick(NOON + HOUR_MS + 2 * LOOK_MS).fired == {("a", "do_s"): 1}
        assert not queue.redis.exists(queue.keys.cancelled)

    def test_message_that_waits_is_not_cancelled(self, fleet: Fleet) -> None:
        """It does the work of the slot: cancelled at each, behind others, it would never start."""
        reaper, first = self.held(fleet, overlap="cancel")
        for hour in (1, 2):
            tick = reaper.tick(NOON + hour * HOUR_MS)
            assert (tick.fired, tick.skipped) == ({}, 1)
        assert [message.id for message in fleet.sent] == [first]
        assert not fleet.queue.redis.exists(fleet.queue.keys.cancelled)
        # Taken up later, it is not stopped for the slot that it stood in for.
        fleet.queue.receive("L", at=NOON + 2 * HOUR_MS + 5)
        reaper.tick(NOON + 2 * HOUR_MS + LOOK_MS)
        assert not fleet.queue.redis.exists(fleet.queue.keys.cancelled)

    def test_jitter_is_drawn_for_each_message(self, fleet: Fleet) -> None:
        """The slot fires in time, and its message waits for what was drawn."""
        fleet.schedule(every("1h", jitter="1m"), NOON - HOUR_MS)
        most: list[int] = []
        scheduler = Scheduler(
            fleet.client.execute, fleet.client.ids, namespace=fleet.namespace, clock=fleet.clock,
            jitter=lambda limit: most.append(limit) or 30_000,
        )  # fmt: skip
        tick = Tick(queues=1, now_ms=NOON)
        scheduler.fire([fleet.queue.keys], tick, float("inf"), NOON)
        assert (tick.fired, most) == ({("a", "do_s"): 1}, [60_000])
        ((_, due),) = fleet.queue.redis.zrange(fleet.queue.keys.delayed, 0, -1, withscores=True)
        assert due == NOON + 30_000
