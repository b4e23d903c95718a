"""The reaper as a thread beside other work: start, stop, health, and servers that change."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from qworker.client.execute.sync import Client
from qworker.daemon import thread
from qworker.daemon.thread import EmbeddedReaper
from qworker.daemon.tick import Tick
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import reapers_key
from tests import servers
from tests.consumer.driving import until
from tests.lua.drive import Drive
from tests.timing import DEADLINE_S

OpenQueue = Callable[..., Drive]


def test_reaps_until_it_is_stopped(client: Client, namespace: str, open_queue: OpenQueue) -> None:
    """A thread reaps beside other work; after the stop it neither reaps nor counts as healthy."""
    queue = open_queue("a")
    queue.redis.hdel(queue.keys.meta, "test")
    queue.redis.hset(queue.keys.meta, "maxlen", 10)
    passes: list[Tick | None] = []
    reaper = EmbeddedReaper(client, namespace, tick_ms=20, durability="off", on_pass=passes.append)
    reaper.start()
    until(lambda: len(passes) > 2)
    assert reaper.healthy() is None
    assert reaper.ready() is None
    assert passes[0] is not None
    assert passes[0].queues == 1
    assert reaper.stop()
    assert not reaper.alive
    assert reaper.healthy() == "the reaper has stopped"
    assert not queue.redis.exists(reapers_key(namespace))


def test_tells_when_no_pass_is_made(
    client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that hangs is unhealthy once its last pass is old."""
    monkeypatch.setattr(thread, "_DEAD_AFTER_S", 0.05)
    passed: list[Tick | None] = []
    reaper = EmbeddedReaper(client, namespace, tick_ms=1, durability="off", on_pass=passed.append)
    reaper.start()
    until(lambda: bool(passed))
    hangs, over = threading.Event(), threading.Event()

    def hang() -> Tick | None:
        hangs.set()
        over.wait()
        return passed[0]

    monkeypatch.setattr(reaper.reaper, "tick", hang)
    until(lambda: hangs.is_set() and reaper.healthy() is not None)
    assert "made its last pass" in str(reaper.healthy())
    assert not reaper.stop(within_s=0.01)
    over.set()
    until(lambda: not reaper.alive)


@pytest.mark.bad_input("server: out of memory")
@pytest.mark.slow
def test_tells_how_full_the_server_is(namespace: str, logs: list[dict[str, object]]) -> None:
    """The metric has the used share of maxmemory, and the log says when that comes to nine tenths, once."""
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        registry, passes = CollectorRegistry(), list[Tick | None]()
        reaper = EmbeddedReaper(client, namespace, registry=registry, on_pass=passes.append)
        reaper._passed(reaper.reaper.tick())
        roomy = registry.get_sample_value("qworker_server_memory_ratio")
        used = int(server.redis().info("memory")["used_memory"])
        for room in (1.0, 1.14, 1.0):  # a little free memory between is no reason to log it again
            server.redis().config_set("maxmemory", int(used * room))
            reaper._passed(reaper.reaper.tick())
        ratio = registry.get_sample_value("qworker_server_memory_ratio")
        reaper.stop()
    assert roomy is not None
    assert ratio is not None
    assert roomy < 0.1
    assert ratio > 0.9
    (logged,) = [event for event in logs if event["event"] == "server_nearly_full"]
    assert "drop dead letters" in str(logged["next_step"])


def test_a_stop_during_a_pass_is_not_kept_waiting(
    client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst may end during the first one: what would follow it, such as to load scripts, is left to other reapers."""
    reaper = EmbeddedReaper(client, namespace)
    passes, followed = list[Tick](), list[str]()
    tick = reaper.reaper.tick

    def stopped() -> Tick:
        reaper.stop_soon()
        passes.append(tick())
        return passes[0]

    monkeypatch.setattr(reaper.reaper, "tick", stopped)
    monkeypatch.setattr(reaper._preloader, "keep", lambda: followed.append("scripts"))
    monkeypatch.setattr(reaper, "_check_ticks", lambda: followed.append("ticks"))
    reaper.start()
    until(lambda: not reaper.alive)
    assert len(passes) == 1
    assert followed == []


def test_is_not_ready_without_scripts(namespace: str) -> None:
    """Ready means that the server runs scripts: PING may succeed when it does not."""
    with servers.start("valkey") as server:
        user = server.url.replace("unix://", "unix://app:pw@")
        server.redis().execute_command(
            "ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-evalsha"
        )
        with Client(ConnectionFactory(user)) as client:
            reaper = EmbeddedReaper(client, namespace)
            assert str(reaper.ready()).startswith("the server does not run scripts: ")


@pytest.mark.slow
def test_notices_that_the_server_was_changed(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's settings are checked again now and then; strict refuses only at the start."""
    monkeypatch.setattr(thread, "_INSPECT_EVERY_S", 0.0)
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        reaper = EmbeddedReaper(client, namespace, tick_ms=20, durability="strict")
        reaper.start()
        until(lambda: reaper.durability is not None)
        server.redis().config_set("appendonly", "no")
        until(lambda: reaper.durability is not None and reaper.durability.durable is False)
        assert reaper.refused is None
        assert reaper.alive
        assert reaper.stop(within_s=DEADLINE_S)
