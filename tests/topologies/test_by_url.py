"""Everything works by the URL alone, on a Cluster and behind Sentinels."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from qworker import NotReplicatedError, QWorker
from qworker.client.execute.sync import Client
from qworker.daemon.durability import inspect_server
from qworker.daemon.reaper import Reaper
from qworker.engine.reap import sweep
from qworker.errors import InvalidOptionError, UnavailableError, UnsupportedServerError
from qworker.fsck.check import check
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import QueueKeys
from tests.cli.conftest import Ran, bare, in_empty_directory  # noqa: F401  fixtures
from tests.consumer.driving import running, until
from tests.consumer.supervisor.test_control import name_of_worker, operate
from tests.consumer.workers import Lab
from tests.topologies import servers

#: So many that each master has some.
NAMES = [f"q{number}" for number in range(12)]


@pytest.mark.parametrize(
    "url",
    ["nodes", pytest.param("trio", marks=pytest.mark.nightly("test_queues_of_all_nodes"))],
    indirect=True,
)
def test_queues_of_all_nodes(url: str, namespace: str) -> None:
    """Messages are sent to many queues, received from all of them together, and settled; the registry names all."""
    app = QWorker(namespace, url=url)
    queues = [app.queue(name) for name in NAMES]
    for queue in queues:
        queue.send_many([{"n": n} for n in range(3)])
    first, *then = queues
    messages = first.receive(36, then=then)
    assert len(messages) == 36
    for message in messages:
        app.queue(message.queue).ack(message)
    assert first.receive(1, wait="300ms", then=then) == []
    assert sorted(app.queues()) == sorted(NAMES)
    assert [(each.ready, each.leases) for each in (queue.inspect() for queue in queues)] == [
        (0, 0)
    ] * 12
    app.close()


def test_async_client(url: str, namespace: str) -> None:
    """The async client goes the same ways, many calls at once."""

    async def use() -> int:
        app = QWorker(namespace, url=url)
        queues = [app.aqueue(name) for name in NAMES]
        await asyncio.gather(*(queue.send({"n": 1}) for queue in queues))
        received = await asyncio.gather(*(queue.receive(5) for queue in queues))
        messages = [message for batch in received for message in batch]
        await asyncio.gather(*(app.aqueue(each.queue).ack(each) for each in messages))
        left = [stats.ready + stats.leases for stats in [await queue.inspect() for queue in queues]]
        await app.aclose()
        assert left == [0] * 12
        return len(messages)

    assert asyncio.run(use()) == 12


@pytest.mark.parametrize(
    "url",
    ["nodes", pytest.param("trio", marks=pytest.mark.nightly("test_reaper"))],
    indirect=True,
)
def test_reaper(url: str, namespace: str) -> None:
    """One pass looks at the queues of all nodes; what is due, overdue or scheduled is moved, wherever it is."""
    app = QWorker(namespace, url=url)
    for name in NAMES:
        queue = app.queue(name)
        queue.send({"n": 1}, delay="1ms")
        queue.send({"n": 2})
        queue.receive(1, visibility="1s")
    with Client(ConnectionFactory(url), give_up_s=10) as client:
        reaper = Reaper(client, namespace, tick_ms=200)

        def done() -> bool:
            reaper.tick()
            stats = [app.queue(name).inspect() for name in NAMES]
            return all((stat.ready, stat.delayed, stat.leases) == (2, 0, 0) for stat in stats)

        until(done, every_s=0.1)
        assert reaper.tick().queues == 12
        reaper.close()
        now_ms, looks = client.execute(
            sweep([QueueKeys(namespace, f"x{n}") for n in range(500)], 1000)
        )
        assert now_ms
        assert [look.queue for look in looks] == [f"x{n}" for n in range(500)]
        findings = check(client, namespace)
        assert [finding for finding in findings if not isinstance(finding, str)] == []
        assert inspect_server(client).engine == "valkey"
    app.close()


@pytest.mark.parametrize(
    "url",
    ["nodes", pytest.param("trio", marks=pytest.mark.nightly("test_worker"))],
    indirect=True,
)
def test_worker(lab: Lab) -> None:
    """A worker receives from queues of all nodes, also where they are filled one after the other."""
    lab.app(
        "\n".join(
            f"@app.task(queue={name!r})\ndef {name}(n: int) -> None:\n    note({name!r}, n)\n"
            for name in NAMES
        )
    )
    with lab.worker("--metrics-port", "0"):
        for n in range(3):
            for name in NAMES:
                lab.send(name, n, queue=name)
            until(lambda n=n: len(lab.notes()) == 12 * (n + 1))
    assert [sorted(lab.noted(name)) for name in NAMES] == [[[0], [1], [2]]] * 12
    until(lambda: all(lab.queue(name).inspect().leases == 0 for name in NAMES))


def test_a_child_of_more_queues_than_it_may_wait_for(
    nodes: servers.Cluster, namespace: str
) -> None:
    """It looks at them again and again, and misses none."""
    app, names, seen = QWorker(namespace, url=nodes.url), [f"q{n}" for n in range(17)], []
    for name in names:
        app.task(name=name, queue=name)(lambda name=name: seen.append(name))
    with running(app):
        for name in names:
            app.queue(name).send({"task": name, "args": []})
        until(lambda: sorted(seen) == sorted(names))
    app.close()


@pytest.mark.parametrize(
    "url",
    ["nodes", pytest.param("trio", marks=pytest.mark.nightly("test_command_line"))],
    indirect=True,
)
def test_command_line(url: str, namespace: str, bare: Callable[..., Ran]) -> None:  # noqa: F811
    """The commands take the same URL."""

    def qworker(*words: str) -> Ran:
        return bare(*words, env={"QWORKER_URL": url, "QWORKER_NAMESPACE": namespace})

    for name in NAMES[:4]:
        assert qworker("send", name, "{}").code == 0
    assert [line.split()[:2] for line in qworker("queue", "ls").lines[1:]] == [
        [name, "1"] for name in NAMES[:4]
    ]
    assert qworker("fsck").code == 0
    assert "server" in qworker("doctor").out


def test_replicas(url: str, namespace: str) -> None:
    """A send waits until a replica has it; more replicas than there are is a named error, and the message is stored."""
    app = QWorker(namespace, url=url)
    for name in NAMES[:4]:
        queue = app.queue(name)
        queue.send({}, replicas=1, within="2s")
        with pytest.raises(NotReplicatedError, match=r"stored, but on [12] of 3 replicas"):
            queue.send({}, replicas=3, within="20ms")
        assert queue.inspect().ready == 2
    app.close()


def _refused(url: str, message: str) -> None:
    with pytest.raises((UnsupportedServerError, UnavailableError), match=message):
        ConnectionFactory(url).connect()


def test_a_url_of_a_node_of_a_cluster_says_what_to_write(nodes: servers.Cluster) -> None:
    """Named as a server by itself."""
    node = nodes.nodes[0].address
    _refused(f"redis://{node}", f"is a node of a Cluster; write redis.cluster://{node}")


def test_urls_of_sentinels_and_their_masters_say_what_to_write(trio: servers.Trio) -> None:
    """Named as servers of another kind, or with another service."""
    master, watcher = trio.master().address, trio.sentinels[0].address
    for url, message in {
        f"redis+cluster://{master}": f"is not in a Cluster; write redis://{master}",
        f"redis://{watcher}": f"is a Sentinel, which stores nothing; write redis.sentinel://{watcher}/",
        f"redis+sentinel://{master}/main": "is not a Sentinel; redis.sentinel:// takes the addresses of",
    }.items():
        _refused(url, message)
    with pytest.raises(InvalidOptionError, match="names the service 'other', which its Sentinels"):
        ConnectionFactory(f"redis+sentinel://{watcher}/other").connect()


@pytest.mark.parametrize(
    "url",
    [
        "nodes",
        pytest.param(
            "trio", marks=pytest.mark.nightly("test_operators_speak_with_workers_and_schedules")
        ),
    ],
    indirect=True,
)
@pytest.mark.slow
def test_operators_speak_with_workers_and_schedules(
    url: str, namespace: str, tmp_path: Path
) -> None:
    """Requests, answers, paused tasks and the owners of schedules are wherever their keys are."""
    lab = Lab(url, namespace, tmp_path)
    lab.app(
        "@app.schedule(every('1h'))\n@app.task(queue='q1')\ndef hourly() -> None:\n    note('ran')\n"
    )
    with lab.worker():
        name = name_of_worker(lab)
        scaled = operate(lab, "worker", "scale", name, "+1", "--json")
        assert json.loads(scaled.stdout)["processes"] == 2
        assert operate(lab, "task", "pause", "hourly").exit_code == 0
        until(lambda: operate(lab, "schedule", "ls").stdout.count("hourly") > 0)
        assert operate(lab, "schedule", "pause", "hourly").exit_code == 0
        shown = json.loads(operate(lab, "schedule", "show", "hourly", "--json").stdout)
        assert (shown["app"], shown["fires"]) == ("jobs", False)
        assert shown["app_seen_ms"] is not None
        assert operate(lab, "task", "resume", "hourly").exit_code == 0
        assert operate(lab, "schedule", "run", "hourly").exit_code == 0
        until(lambda: lab.notes("ran"))
    lab.close()
