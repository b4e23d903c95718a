"""Faults of the surroundings: a taken port, a slow scraper, rights taken away, two versions side by side, chance."""

from __future__ import annotations

import re
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from qworker.daemon.queue_metrics import MAX_QUEUES
from qworker.wire.keys import QueueKeys, queues_key
from tests.timing import Watch
from tests.upgrade.versions import make_next
from verification.faults.consumers import nothing
from verification.faults.load import Load
from verification.faults.network import RECONNECT
from verification.faults.processes import KIT, NAMESPACE, ROOT
from verification.faults.producer import Sending
from verification.faults.row import Row, at_least, at_most, exactly, within
from verification.faults.servers import a_server
from verification.faults.stage import Stage

__all__ = ["ROWS"]

QUEUES = 10_000


def crowd_metrics(stage: Stage) -> None:
    """Take a worker's metrics port, let a scraper read nothing, and make very many queues."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        stage.worker("--metrics-port", port)
        stage.until(
            lambda: len(stage.children()) == (stage.load.workers + 1) * stage.load.procs, "start"
        )
        client = stage.server.redis()
        crowd = [QueueKeys(NAMESPACE, f"q{number:04}") for number in range(QUEUES)]
        names: dict[Any, Any] = {keys.name: 1 for keys in crowd}
        with client.pipeline(transaction=False) as call:
            for keys in crowd:
                call.rpush(keys.ready[0], b'{"task": "handle", "args": ["nobody", 0]}')
            call.hset(queues_key(NAMESPACE), mapping=names)
            call.execute()
        daemon = stage.daemons[0]
        (served,) = daemon.events("metrics_served")
        hanging = socket.create_connection(("127.0.0.1", served["port"]))
        hanging.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        url = f"http://127.0.0.1:{served['port']}/metrics"

        def all_are_told() -> bool:
            watch = Watch(stage.server.pid, daemon.process.pid)
            with urllib.request.urlopen(url, timeout=30) as response:
                text = response.read().decode()
            stage.most("scrape_s", round(watch.passed_s(), 2))
            labels = set(re.findall('queue="([^"]*)"', text))
            stage.measured["queue_labels"] = len(labels)
            return len(labels) > MAX_QUEUES

        stage.until(all_are_told, "scrape with labels of the crowd")
        nothing(stage)
        hanging.close()
        # A reaper may be about to announce some of them.
        daemon.stop()
        with client.pipeline(transaction=False) as call:
            for keys in crowd:
                call.unlink(keys.ready[0], keys.meta, keys.stats)
            call.hdel(queues_key(NAMESPACE), *names)
            call.execute()
        stage.replace(daemon)


def one_key(stage: Stage) -> None:
    """Send ten thousand messages of one unique key, from two threads, while none is received: an ack frees the key."""
    ids: set[str] = set()

    def storm() -> None:
        queue = stage.queue()
        for _ in range(10):
            bodies = [{"task": "handle", "args": ["one-1", 300]}] * 500
            ids.update(queue.send_many(bodies, unique="the one"))

    stage.notebook.note("sending", "one", 1, 1)
    stage.queue().pause("out")
    threads = [threading.Thread(target=storm) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stage.queue().resume()
    stage.measured["sends"] = 10_000
    stage.measured["stored"] = len(ids)
    nothing(stage)
    starts = [event for event in stage.notes("started") if event.rest[0] == "one-1"]
    stage.measured["one_starts"] = len(starts)


def mix_versions(stage: Stage) -> None:
    """Start a worker, a producer and a daemon of the next version beside ours, as in the middle of a deployment.

    It has other scripts, and writes envelopes that begin with `q2 `, which ours leave to it. Envelopes of a version
    that is newer still are among them, which both leave where they are.
    """
    client: Any = stage.server.redis()
    keys = stage.queue().keys
    newer = [f"q3 later{number} 1 0 0 0 0\n{{}}".encode() for number in range(50)]
    following = make_next(stage.directory / "next")
    stage.environ["PYTHONPATH"] = f"{KIT}:{following}:{ROOT}"
    worker, producer = stage.worker(), stage.produce()
    stage.daemon()
    del stage.environ["PYTHONPATH"]
    stage.until(lambda: stage.spoken(worker.children()), "worker of the next version at work")
    stage.until(lambda: stage.spoken([producer.process.pid]), "producer of the next version")
    client.rpush(keys.ready[0], *newer)
    nothing(stage)
    theirs, name = set(worker.children()), f"p{stage.producers.index(producer)}-"
    started = stage.notes("started")
    # Ours take none of theirs, theirs take both.
    written = [event for event in started if event.rest[0].startswith(name)]
    stage.measured["next_started"] = len(written)
    stage.measured["next_by_ours"] = sum(event.pid not in theirs for event in written)
    stage.measured["ours_by_next"] = sum(event.pid in theirs for event in started) - len(written)
    stage.stop_producers()
    stage.until(lambda: stage.queue().inspect().ready <= len(newer), "rest")
    kept = [item for item in client.lrange(keys.ready[0], 0, -1) if item in set(newer)]
    stage.measured["newer_kept"] = len(kept)
    for envelope in newer:
        client.lrem(keys.ready[0], 0, envelope)


def take_rights(stage: Stage) -> None:
    """Take one right after the other from all users for half a second."""
    client: Any = stage.server.redis()
    for turn, _ in enumerate(stage.goes_on(0.5, rights_taken=2)):
        command = ["hset", "rpush", "zrem"][turn % 3]
        client.execute_command("ACL", "SETUSER", "default", f"-{command}")
        time.sleep(0.5)
        client.execute_command("ACL", "SETUSER", "default", f"+{command}")
        stage.add("rights_taken", 1)


def by_chance(stage: Stage) -> None:
    """Do one thing after the other, drawn at random."""
    proxies = stage.proxies

    def freeze_server() -> None:
        stage.server.freeze()
        time.sleep(stage.chance.uniform(0.2, 3.0))
        stage.server.thaw()

    def restart_server() -> None:
        stage.lose()
        stage.server.kill()
        time.sleep(stage.chance.uniform(0, 1.5))
        stage.server.start()

    def freeze_worker() -> None:
        pids = stage.freeze(stage.chance.choice(stage.victims))
        time.sleep(stage.chance.uniform(0.5, 4.0))
        stage.thaw(pids)

    def cut_off() -> None:
        stage.lose()
        name = stage.chance.choice(sorted(proxies))
        proxies[name].blackhole = True
        time.sleep(stage.chance.uniform(0.2, 4.0))
        proxies[name].blackhole = False

    def lose_replies() -> None:
        for proxy in proxies.values():
            proxy.cut_reply(stage.chance.randint(3, 12))

    def heal() -> None:
        for proxy in proxies.values():
            proxy.heal()

    def reset() -> None:
        for proxy in proxies.values():
            proxy.reset_all()

    def replace_daemon() -> None:
        stage.daemons[0].kill()
        stage.replace(stage.daemons[0])

    def stop_worker() -> None:
        worker = stage.chance.choice(stage.victims)
        stage.lose(worker.process.pid, *worker.children())
        worker.stop()
        stage.replace(worker)

    steps: list[Callable[[], object]] = [
        stage.kill_child, stage.kill_child, stage.kill_worker, freeze_worker, stop_worker, replace_daemon,
        freeze_server, restart_server, stage.server.redis().script_flush, cut_off, lose_replies, heal, reset,
    ]  # fmt: skip
    _draw(stage, steps)
    heal()
    stage.server_returned()


def _draw(stage: Stage, steps: Sequence[Callable[[], object]]) -> None:
    """Take steps at random, one after the other, until the stage ends."""
    for _ in stage.goes_on(0.3, steps=5):
        step = stage.chance.choice(steps)
        stage.notebook.note("step", getattr(step, "__name__", "step"))
        step()
        stage.note_gaps()
        stage.add("steps", 1)


ROWS = [
    Row(
        name="F47",
        fault=f"a taken metrics port, a scraper that reads nothing, {QUEUES:,} queues",
        course=crowd_metrics,
        bounds=(
            within("scrape_s", 2.0),
            exactly("queue_labels", MAX_QUEUES + 1),
            at_most("duplicates", 0),
        ),
        seconds=3,
    ),
    Row(
        name="F49",
        fault="ten thousand sends with one unique key",
        course=one_key,
        bounds=(at_least("sends", 10_000), at_most("one_starts", "stored")),
        load=Load(sending=Sending(rate=200)),
        seconds=3,
    ),
    Row(
        name="F50",
        fault="two versions side by side, with other scripts and envelopes, and envelopes of a third",
        course=mix_versions,
        bounds=(
            at_least("next_started", 100),
            exactly("next_by_ours", 0),
            at_least("ours_by_next", 1),
            exactly("newer_kept", 50),
            at_most("duplicates", 0),
        ),
        seconds=5,
    ),
    Row(
        name="F51",
        fault="all users lose their rights, and get them back (ACL)",
        course=take_rights,
        mends=("counter", "no deadline", "two places", "no messages"),
        bounds=(at_least("rights_taken", 2),),
        seconds=10,
    ),
    Row(
        name="F99",
        fault="random faults of all kinds",
        course=by_chance,
        load=Load(proxied=True, sending=Sending(rate=500)),
        server=a_server("--appendfsync", "always"),
        bounds=(
            at_least("steps", 5),
            at_most("unexplained", 0),
            # Without the gaps that steps leave, one after the other; a step that leaves none takes 4 s at most.
            within("redelivery_outside_gaps_p99_s", 2.0 + 4.0 + 0.2 + 1.0),
            RECONNECT,
        ),
        seconds=120,
    ),
]
