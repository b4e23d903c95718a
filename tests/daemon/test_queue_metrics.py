"""Metrics, read from a real scrape."""

from __future__ import annotations

import os
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.daemon.queue_metrics import OTHER, QueueCollector
from qworker.daemon.reaper import Reaper
from qworker.daemon.reaper_metrics import ReaperMetrics
from qworker.daemon.tick import Tick
from qworker.engine.dead import redrive
from qworker.engine.inspect import inspect
from qworker.engine.settle import Outcomes
from qworker.store.connections import ConnectionFactory
from qworker.telemetry.http import MetricsListener
from qworker.wire.ids import EntryId
from qworker.wire.keys import QueueKeys
from qworker.wire.reasons import DEATH_REASONS
from tests import servers
from tests.daemon.conftest import events
from tests.lua.drive import NOW, Drive
from tests.timing import Clock

OpenQueue = Callable[..., Drive]
Scrape = Callable[[], dict[str, float]]


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry of the test's own."""
    return CollectorRegistry()


@pytest.fixture
def scrape(registry: CollectorRegistry) -> Iterator[Scrape]:
    """Scrape the registry over HTTP: sample as written, with its labels → value."""
    listener = MetricsListener(registry, healthy=lambda: None, ready=lambda: None)
    listener.start()

    def samples() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics") as page:
            text = page.read().decode()
        figures = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(f'{name}="{sample.labels[name]}"' for name in sample.labels)
                figures[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return figures

    yield samples
    listener.stop()


def queues_of(*drives: Drive) -> Callable[[], list[QueueKeys]]:
    """What a collector asks for its queues."""
    return lambda: [drive.keys for drive in drives]


def test_tells_the_truth_about_a_queue(
    client: Client, registry: CollectorRegistry, scrape: Scrape, open_queue: OpenQueue
) -> None:
    """Sizes, ages and counters are those that Redis holds."""
    queue = open_queue("a")
    queue.send("m", "n", "o", "p")
    queue.send("q", delay_ms=10)
    queue.send("r", ttl_ms=1)
    outcomes = Outcomes("L")
    outcomes.acks = [1]
    outcomes.nack(2, 0)
    outcomes.release(3)
    outcomes.bury(4, "rejected")
    queue.receive("L", 4)
    queue.receive("M", 1, outcomes)
    stale = Outcomes("L")
    stale.acks = [1]
    queue.settle(stale)
    Reaper(client, queue.base.split(":")[0]).tick(NOW + 20)
    queue.redis.hset(queue.keys.meta, "paused", "out")
    # The collector asks without a time, so that the server's counts: the age is one of decades.
    queue.redis.hdel(queue.keys.meta, "test")
    registry.register(QueueCollector(client, queues_of(queue)))
    figures = scrape()
    assert figures.pop('qworker_oldest_ready_age_seconds{queue="a"}') > 1e9
    assert figures.pop('qworker_reap_lateness_seconds{queue="a"}') > 1e9
    assert figures == {
        'qworker_messages_ready{queue="a"}': 2,
        'qworker_messages_delayed{queue="a"}': 0,
        'qworker_messages_unacked{queue="a"}': 1,
        'qworker_messages_dead{queue="a"}': 1,
        'qworker_queue_paused{queue="a",state="in"}': 0,
        'qworker_queue_paused{queue="a",state="out"}': 1,
        'qworker_sent_total{queue="a"}': 6,
        'qworker_received_total{queue="a"}': 5,
        'qworker_acked_total{queue="a"}': 1,
        'qworker_followed_total{queue="a"}': 0,
        'qworker_outbox_messages{queue="a"}': 0,
        'qworker_outbox_age_seconds{queue="a"}': 0,
        'qworker_results_total{queue="a"}': 0,
        'qworker_nacked_total{queue="a"}': 1,
        'qworker_released_total{queue="a"}': 1,
        'qworker_unknown_total{queue="a"}': 0,
        'qworker_expired_total{queue="a"}': 1,
        'qworker_timeouts_total{queue="a"}': 0,
        'qworker_redriven_total{queue="a"}': 0,
        'qworker_stale_receipts_total{queue="a"}': 1,
        'qworker_promoted_total{queue="a"}': 1,
        'qworker_runs_parked_total{queue="a"}': 0,
        'qworker_dead_total{queue="a",reason="rejected"}': 1,
        'qworker_dead_total{queue="a",reason="max_receives"}': 0,
        'qworker_dead_total{queue="a",reason="not_retried"}': 0,
        'qworker_dead_total{queue="a",reason="unknown_task"}': 0,
        'qworker_dead_total{queue="a",reason="bad_arguments"}': 0,
        'qworker_dead_total{queue="a",reason="bad_result"}': 0,
        'qworker_dead_total{queue="a",reason="bad_signature"}': 0,
        'qworker_dead_total{queue="a",reason="undecipherable"}': 0,
        'qworker_dead_total{queue="a",reason="unknown_key"}': 0,
        'qworker_dead_total{queue="a",reason="foreign"}': 0,
        'qworker_dead_total{queue="a",reason="duplicate"}': 0,
    }


def test_journal_has_figures_where_there_is_one(
    client: Client, registry: CollectorRegistry, scrape: Scrape, open_queue: OpenQueue
) -> None:
    """Its size, whether it is shed, and how near its slowest reader is to missing entries."""
    queue, other = open_queue("a"), open_queue("b")
    mapping = {"journal": "all", "journal_cap": 2**20, "journal_shed": 1}
    for each in ("x" * 1000, "y" * 900):
        queue.redis.hset(queue.keys.meta, mapping={"journal": "all", "journal_cap": 2**20})
        queue.send("m", flags={"w": each})
    queue.redis.hset(queue.keys.meta, mapping=mapping)
    plan = Queue(client, queue.base.split(":")[0], "a")
    epoch = int(queue.redis.hget(queue.keys.meta, "journal_epoch"))
    for name, entry in (("fast", 1), ("slow", 0)):
        plan.advance_reader(name, epoch, entry)
    for each in (queue, other):
        each.redis.hdel(each.keys.meta, "test")
    registry.register(QueueCollector(client, queues_of(queue, other)))
    written = int(queue.redis.hget(queue.keys.stats, "journal_written"))
    _, second = queue.redis.xrange(queue.keys.journal)
    first = int(second[1][b"b"])  # bytes before it
    figures = {name: value for name, value in scrape().items() if "journal" in name}
    assert figures == {
        'qworker_journal_entries{queue="a"}': 2,
        'qworker_journal_bytes{queue="a"}': written,
        'qworker_journal_shed{queue="a"}': 1,
        'qworker_journal_unread_ratio{queue="a"}': (written - first) / 2**20,
    }


def test_members_of_groups_that_wait_are_counted(
    client: Client, registry: CollectorRegistry, scrape: Scrape, open_queue: OpenQueue
) -> None:
    """Beside all that is ready; a queue without groups has no such series, one whose groups ran empty has 0."""
    queue, empty, plain = open_queue("a"), open_queue("b"), open_queue("c")
    for each, number in ((queue, 3), (empty, 1)):
        of_group = Queue(client, each.base.split(":")[0], each.keys.name)
        of_group.send_many([b"m"] * number, group="acme")
        of_group.receive(1)
    queue.send("n")
    plain.send("n")
    registry.register(QueueCollector(client, queues_of(queue, empty, plain)))
    figures = scrape()
    waited = 'qworker_large_group_wait_seconds{group="acme",queue="a"}'
    assert 0 <= figures.pop(waited) < 60
    assert {name: value for name, value in figures.items() if "group" in name} == {
        'qworker_group_messages_waiting{queue="a"}': 2,
        'qworker_group_messages_waiting{queue="b"}': 0,
        'qworker_large_group_waiting{group="acme",queue="a"}': 2,
        'qworker_large_group_running{group="acme",queue="a"}': 1,
    }
    assert figures['qworker_messages_ready{queue="a"}'] == 3


@pytest.mark.slow
def test_the_ten_largest_groups_have_labels(
    client: Client, registry: CollectorRegistry, scrape: Scrape, open_queue: OpenQueue
) -> None:
    """Of all queues together, however many there are: those with the most waiting messages."""
    queues = [open_queue(name) for name in "ab"]
    for at, each in enumerate(queues):
        of_group = Queue(client, each.base.split(":")[0], each.keys.name)
        for number in range(100):
            of_group.send_many([b"m"] * (20 + at if number >= 94 else 1), group=f"t/{number}")
    registry.register(QueueCollector(client, queues_of(*queues)))
    found = {
        name: value for name, value in scrape().items() if name.startswith("qworker_large_group_w")
    }
    waiting = {name: value for name, value in found.items() if "waiting" in name}
    assert Counter(waiting.values()) == {20: 4, 21: 6}
    assert len(found) == 20


def test_counts_redriven_and_timed_out(
    client: Client, registry: CollectorRegistry, scrape: Scrape, open_queue: OpenQueue
) -> None:
    """Timeouts, dead letters by reason and redrives are counted."""
    queue = open_queue("a")
    queue.redis.hset(queue.keys.meta, "max_receives", 1)
    queue.send("m")
    queue.receive("L", 1, visibility_ms=1000)
    Reaper(client, queue.base.split(":")[0]).tick(NOW + 1000)
    (entry,) = queue.redis.xrange(queue.keys.dead)
    queue.run(redrive(queue.keys, [EntryId.of_stream(entry[0], 0)], now_ms=NOW))
    queue.redis.hdel(queue.keys.meta, "test")
    registry.register(QueueCollector(client, queues_of(queue)))
    figures = scrape()
    assert figures['qworker_timeouts_total{queue="a"}'] == 1
    assert figures['qworker_redriven_total{queue="a"}'] == 1
    assert figures['qworker_dead_total{queue="a",reason="max_receives"}'] == 1


def test_figures_are_kept_for_a_few_seconds(
    client: Client,
    registry: CollectorRegistry,
    scrape: Scrape,
    open_queue: OpenQueue,
    clock: Clock,
) -> None:
    """Scrapes in quick succession ask the server once."""
    queue = open_queue("a")
    registry.register(QueueCollector(client, queues_of(queue), clock=clock))
    name = 'qworker_messages_ready{queue="a"}'
    assert scrape()[name] == 0
    queue.send("m")
    assert scrape()[name] == 0
    clock.now_s += 3
    assert scrape()[name] == 1


def test_labels_are_bounded(
    client: Client, registry: CollectorRegistry, scrape: Scrape, open_queue: OpenQueue
) -> None:
    """The first queues by name have their own labels, the rest is one: sums for sizes, the worst for ages."""
    queues = [open_queue(name) for name in "abcd"]
    for number, queue in enumerate(queues, 1):
        queue.send(*(f"m{index}" for index in range(number)), at=NOW - number)
        queue.redis.hdel(queue.keys.meta, "test")
    queues[3].redis.hset(queues[3].keys.meta, "paused", "in")
    registry.register(QueueCollector(client, queues_of(*queues), max_queues=2))
    figures = scrape()
    ready = {name: value for name, value in figures.items() if "messages_ready" in name}
    assert ready == {
        'qworker_messages_ready{queue="a"}': 1,
        'qworker_messages_ready{queue="b"}': 2,
        f'qworker_messages_ready{{queue="{OTHER}"}}': 7,
    }
    assert figures[f'qworker_sent_total{{queue="{OTHER}"}}'] == 7
    assert figures[f'qworker_queue_paused{{queue="{OTHER}",state="in"}}'] == 1
    ages = [
        figures[f'qworker_oldest_ready_age_seconds{{queue="{name}"}}'] for name in ("a", "b", OTHER)
    ]
    assert ages == sorted(ages)


def test_reasons_of_dead_letters_are_bounded(
    client: Client, registry: CollectorRegistry, scrape: Scrape, open_queue: OpenQueue
) -> None:
    """Consumers may have their own reasons; from the twenty-first on they are one."""
    queue = open_queue("a")
    letters = "abcdefghijklmnopqrstuvwxyz"
    queue.redis.hset(queue.keys.stats, mapping={f"dead:{letter}": 1 for letter in letters})
    queue.redis.hdel(queue.keys.meta, "test")
    registry.register(QueueCollector(client, queues_of(queue)))
    dead = {name: value for name, value in scrape().items() if name.startswith("qworker_dead")}
    assert len(dead) == 21 + len(DEATH_REASONS)
    assert dead['qworker_dead_total{queue="a",reason="other"}'] == 6


@pytest.mark.bad_input("data found: a broken queue is seen")
def test_broken_queue_is_left_out(
    client: Client,
    registry: CollectorRegistry,
    scrape: Scrape,
    open_queue: OpenQueue,
    logs: list[dict[str, object]],
) -> None:
    """A queue whose figures cannot be read is logged; the others have theirs."""
    broken, whole = open_queue("a"), open_queue("b")
    broken.redis.set(broken.keys.dead, "x")
    whole.redis.hset(whole.keys.stats, mapping={"sent": "x", "stored": "-4", "acked": "7"})
    for queue in (broken, whole):
        queue.redis.hdel(queue.keys.meta, "test")
    registry.register(QueueCollector(client, queues_of(broken, whole)))
    figures = scrape()
    assert 'qworker_messages_ready{queue="a"}' not in figures
    assert figures['qworker_acked_total{queue="b"}'] == 7
    assert [line["queue"] for line in events(logs, "queue_figures_unread")] == ["a"]


@pytest.mark.skipif(
    "QWORKER_TEST_SERVER" in os.environ,
    reason="trips are counted to one server that is not flushed",
)
@pytest.mark.slow
def test_queues_are_read_fifty_in_a_trip(
    client: Client,
    registry: CollectorRegistry,
    scrape: Scrape,
    namespace: str,
    logs: list[dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten thousand queues were ten thousand trips; one that cannot be read costs one more, and its own figures only."""
    queues = [QueueKeys(namespace, f"q{number:03}") for number in range(250)]
    with client.factory.redis() as redis, redis.pipeline(transaction=False) as trip:
        for keys in queues:
            trip.hset(keys.stats, mapping={"sent": 3})
            trip.hset(keys.meta, mapping={"journal": "all", "journal_cap": 1000})
            trip.hset(keys.readers, "spark", "0-0 5")
        trip.set(queues[7].dead, "x")
        trip.delete(queues[8].readers)
        trip.set(queues[8].readers, "x")
        trip.execute()
    registry.register(QueueCollector(client, lambda: queues))
    client.execute(inspect(queues[0]))  # the script is loaded, and connected to
    trips = count_trips(client, monkeypatch)
    figures = scrape()
    sent = {name for name in figures if name.startswith("qworker_sent_total")}
    unread = {name for name in figures if name.startswith("qworker_journal_unread")}
    assert len(sent) == 249
    assert 'qworker_sent_total{queue="q007"}' not in figures
    assert len(unread) == 248
    # Figures, readers, what has been written, and the entry after each reader's; each once per fifty.
    assert trips["made"] == 5 * 4 + len(["inspect of q007", "readers of q008"])
    warnings = events(logs, "queue_figures_unread")
    assert {str(line["queue"]) for line in warnings} == {"q007", "q008"}


def count_trips(client: Client, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what the client writes to its servers from now on, but for its greetings."""
    counts: Counter[str] = Counter()
    kind = type(client.factory.open(client.factory.locate(None)).connection)
    write = kind.send_packed_command

    def counted(self: Any, command: Any, **options: Any) -> Any:
        # Not the greetings of a new connection.
        written = b"".join(command)
        counts["made"] += any(word in written for word in (b"EVALSHA", b"HGET", b"XRANGE"))
        return write(self, command, **options)

    monkeypatch.setattr(kind, "send_packed_command", counted)
    return counts


def test_without_a_server_there_are_no_queue_figures(
    registry: CollectorRegistry, scrape: Scrape, logs: list[dict[str, object]]
) -> None:
    """Old figures would look like a queue at rest, so none are exported; the reaper's own are."""
    with servers.start("valkey") as server:
        url = server.url
    with Client(ConnectionFactory(url)) as client:
        registry.register(QueueCollector(client, lambda: [QueueKeys("n", "a")]))
        ReaperMetrics(registry).passed(None)
        figures = scrape()
    assert figures["qworker_reaper_tick_errors_total"] == 1
    assert not [name for name in figures if "{queue" in name]
    assert events(logs, "queue_figures_unread")


@pytest.mark.bad_input("data found: a broken queue is seen")
def test_tells_how_the_reaper_does(registry: CollectorRegistry, scrape: Scrape) -> None:
    """Passes, failures, their time, broken queues, fired slots and the server are counted and named."""
    metrics = ReaperMetrics(registry)
    tick = Tick(queues=1, now_ms=NOW, elapsed_s=0.004)
    tick.broken.update(("x", "y"))
    tick.errors = 3
    tick.fire("a", "sweep")
    tick.fire("a", "sweep")
    metrics.passed(tick)
    metrics.passed(None)
    assert "qworker_server_durable" not in scrape()
    metrics.server("valkey", "9.1.2", None)
    assert "qworker_server_durable" not in scrape()
    metrics.server("redis", "8.0", durable=False)
    metrics.memory(0.95)
    figures = scrape()
    assert figures["qworker_reaper_ticks_total"] == 1
    assert figures["qworker_reaper_tick_errors_total"] == 1
    assert figures["qworker_reaper_queue_errors_total"] == 3
    assert figures["qworker_reaper_last_tick_timestamp_seconds"] > 1e9
    assert figures["qworker_reaper_broken_queues"] == 2
    assert figures['qworker_reaper_tick_seconds_bucket{le="0.005"}'] == 1
    assert figures['qworker_schedules_fired_total{queue="a",task="sweep"}'] == 2
    assert figures["qworker_server_durable"] == 0
    assert figures["qworker_server_memory_ratio"] == 0.95
    metrics.memory(None)
    assert "qworker_server_memory_ratio" not in scrape()
    metrics.passed(Tick(queues=1))
    assert scrape()["qworker_reaper_broken_queues"] == 0
    infos = [name for name in figures if name.startswith("qworker_server_info")]
    assert infos == ['qworker_server_info{engine="redis",version="8.0"}']
    assert any(name.startswith('qworker_build_info{version="') for name in figures)


QUEUE, TASK = {"queue"}, {"queue", "task"}
#: What alerts and dashboards are written against: changing a name here breaks those of users.
PUBLISHED = {
    "qworker_messages_ready": ("gauge", QUEUE),
    "qworker_messages_delayed": ("gauge", QUEUE),
    "qworker_messages_unacked": ("gauge", QUEUE),
    "qworker_messages_dead": ("gauge", QUEUE),
    "qworker_oldest_ready_age_seconds": ("gauge", QUEUE),
    "qworker_reap_lateness_seconds": ("gauge", QUEUE),
    "qworker_queue_paused": ("gauge", {"queue", "state"}),
    "qworker_sent": ("counter", QUEUE),
    "qworker_received": ("counter", QUEUE),
    "qworker_acked": ("counter", QUEUE),
    "qworker_followed": ("counter", QUEUE),
    "qworker_results": ("counter", QUEUE),
    "qworker_outbox_messages": ("gauge", QUEUE),
    "qworker_outbox_age_seconds": ("gauge", QUEUE),
    "qworker_nacked": ("counter", QUEUE),
    "qworker_released": ("counter", QUEUE),
    "qworker_unknown": ("counter", QUEUE),
    "qworker_expired": ("counter", QUEUE),
    "qworker_timeouts": ("counter", QUEUE),
    "qworker_redriven": ("counter", QUEUE),
    "qworker_stale_receipts": ("counter", QUEUE),
    "qworker_promoted": ("counter", QUEUE),
    "qworker_runs_parked": ("counter", QUEUE),
    "qworker_dead": ("counter", {"queue", "reason"}),
    "qworker_group_messages_waiting": ("gauge", QUEUE),
    "qworker_large_group_waiting": ("gauge", {"queue", "group"}),
    "qworker_large_group_running": ("gauge", {"queue", "group"}),
    "qworker_large_group_wait_seconds": ("gauge", {"queue", "group"}),
    "qworker_journal_entries": ("gauge", QUEUE),
    "qworker_journal_bytes": ("gauge", QUEUE),
    "qworker_journal_shed": ("gauge", QUEUE),
    "qworker_journal_unread_ratio": ("gauge", QUEUE),
    "qworker_reaper_ticks": ("counter", set()),
    "qworker_reaper_tick_errors": ("counter", set()),
    "qworker_reaper_queue_errors": ("counter", set()),
    "qworker_reaper_last_tick_timestamp_seconds": ("gauge", set()),
    "qworker_reaper_tick_seconds": ("histogram", set()),
    "qworker_reaper_broken_queues": ("gauge", set()),
    "qworker_schedules_fired": ("counter", TASK),
    "qworker_server_durable": ("gauge", set()),
    "qworker_server_memory_ratio": ("gauge", set()),
    "qworker_server_info": ("gauge", {"engine", "version"}),
    "qworker_build_info": ("gauge", {"version"}),
}


def test_names_kinds_and_labels_are_the_published_ones(
    client: Client, registry: CollectorRegistry, open_queue: OpenQueue
) -> None:
    """What is exported is the published table; a counter's samples end in _total."""
    queue = open_queue("a")
    queue.redis.hset(queue.keys.meta, "journal", "all")
    queue.redis.hset(queue.keys.readers, "spark", "0-0 5")
    Queue(client, queue.base.split(":")[0], queue.keys.name).send("m", group="acme")
    queue.redis.hdel(queue.keys.meta, "test")
    registry.register(QueueCollector(client, queues_of(queue)))
    metrics = ReaperMetrics(registry)
    metrics.server("valkey", "9", durable=True)
    metrics.memory(0.5)
    tick = Tick(queues=1)
    tick.fire("a", "t")
    metrics.passed(tick, {("a", "t"), ("a", "not yet")})
    exported = {
        family.name: (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in registry.collect()
    }
    assert exported == PUBLISHED


def test_schedules_count_from_zero(registry: CollectorRegistry, scrape: Scrape) -> None:
    """A schedule that has not fired yet has its counter: its first time is an increase."""
    metrics = ReaperMetrics(registry)
    tick = Tick(queues=1)
    metrics.passed(tick, {("a", "t")})
    assert scrape()['qworker_schedules_fired_total{queue="a",task="t"}'] == 0
    tick.fire("a", "t")
    metrics.passed(tick, {("a", "t")})
    assert scrape()['qworker_schedules_fired_total{queue="a",task="t"}'] == 1
