"""Several reapers over the same queues: each message is moved once, by short scripts."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from qworker.client import Client
from qworker.commands.sending import NewMessage, send
from qworker.connection import ConnectionFactory
from qworker.daemon.reaper import PROMOTED_AT_ONCE
from qworker.daemon.service import EmbeddedReaper
from qworker.envelope import tail
from qworker.keys import QueueKeys, queues_key
from tests import servers
from tests.daemon.processes import Systemd, daemon

MESSAGES = 100_000


def fill(client: Client, keys: QueueKeys, delay_ms: int) -> None:
    """Send the messages in calls of a thousand."""
    for _ in range(MESSAGES // 1000):
        messages = [NewMessage(client.ids.message_id(), tail(b"x" * 100)) for _ in range(1000)]

        def make(messages: list[NewMessage] = messages, **lane: object) -> object:
            return send(keys, messages, delay_ms=delay_ms, **lane)  # type: ignore[arg-type]

        client.send(make)  # type: ignore[arg-type]


@pytest.mark.slow
def test_three_reapers_move_a_hundred_thousand_due_messages_once(tmp_path: Path) -> None:
    """Two daemons and a reaper inside a worker race: no message is lost, none is doubled, no script is long."""
    with closing(Systemd(str(tmp_path / "notify"))) as systemd, servers.start("valkey") as server:
        redis, keys = server.redis(), QueueKeys("n", "q")
        redis.hset(queues_key("n"), "q", 1)
        redis.config_set("slowlog-log-slower-than", 0)
        redis.config_set("slowlog-max-len", 50_000)
        with (
            Client(ConnectionFactory(server.url)) as client,
            daemon(server.url, "n", systemd) as one,
            daemon(server.url, "n", systemd) as two,
        ):
            systemd.wait_for("READY=1")
            systemd.wait_for("READY=1")
            embedded = EmbeddedReaper(client, "n", durability="off")
            embedded.start()
            # Due together, once all are sent.
            fill(client, keys, delay_ms=5000)
            redis.slowlog_reset()
            deadline = time.monotonic() + 60
            while redis.zcard(keys.delayed) and time.monotonic() < deadline:
                time.sleep(0.05)
            scripts = [
                entry["duration"]
                for entry in redis.slowlog_get(50_000)
                if entry["command"].startswith(b"EVALSHA")
            ]
            assert redis.zcard("n:reapers") == 3
            assert embedded.stop()
            assert one.poll() is two.poll() is None
        items = redis.lrange(keys.ready[0], 0, -1)
        assert len(items) == MESSAGES
        assert len({item.split()[1] for item in items}) == MESSAGES
        stats = {name: int(value) for name, value in redis.hgetall(keys.stats).items()}
        assert (stats[b"promoted"], stats[b"stored"]) == (MESSAGES, MESSAGES)
        # The goal is 5 ms at p99 (alone on the machine it is 1.3 ms). Here processes compete for few cores, and what
        # a script waits for its core counts too, so the typical one is asserted.
        assert len(scripts) >= MESSAGES / PROMOTED_AT_ONCE
        assert sorted(scripts)[len(scripts) // 2] < 5000
