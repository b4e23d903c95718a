"""Schedules and their apps: who may remove them, who keeps them firing, and what operators do to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from qworker.app.schedule import every
from qworker.client.execute.sync import Client
from qworker.client.namespace.owners import ORPHANED_MS, note_owner, read_owners, same_owner
from qworker.client.queue_ref import QueueRef
from qworker.consumer.app_names import default_name
from qworker.consumer.manifest import load_app, name_of
from qworker.daemon.reaper import Reaper
from qworker.daemon.schedule_changes import pause, remove_chosen, resume, run_now
from qworker.daemon.schedule_listing import list_schedules
from qworker.daemon.schedules import read_schedules, register, server_now_ms
from qworker.errors import InvalidNameError
from qworker.wire.keys import QueueKeys, owners_key
from qworker.wire.schedule import StoredSchedule
from tests.lua.drive import Drive

OpenQueue = Callable[..., Drive]
HOUR_MS = 3_600_000


def hourly(app: str, *names: str, **options: Any) -> dict[str, StoredSchedule]:
    """Hourly schedules of queue a."""
    fields = {"task": "do", "queue": "a", "body": '{"task": "do"}', **options}
    spec = every("1h", missed="all").spec
    return {name: StoredSchedule(app=app, spec=spec, **fields) for name in names}


def names(client: Client, namespace: str) -> dict[str, str]:
    """Schedule → app."""
    return {schedule.name: schedule.app for schedule in list_schedules(client, namespace)}


def long_ago(client: Client, namespace: str, hours: int, *schedules: str) -> None:
    """Let schedules have fired for the last time some hours ago."""
    at_ms = (server_now_ms(client.execute) // HOUR_MS - hours) * HOUR_MS
    with client.factory.redis(QueueKeys(namespace, "a").schedules) as redis:
        for name in schedules:
            redis.hset(QueueKeys(namespace, "a").schedules, f"{name}:fired", at_ms)


def fired(client: Client, namespace: str) -> int:
    """Fire what is due; returns the number of messages."""
    reaper = Reaper(client, namespace, tick_ms=1000)
    reaper.tick()
    reaper.close()
    with client.factory.redis(QueueKeys(namespace, "a").ready[0]) as redis:
        return int(redis.llen(QueueKeys(namespace, "a").ready[0]))  # type: ignore[arg-type]


@pytest.mark.parametrize("spelled", ["old", "old.py", "./old.py", "old:app", "old.py:app"])
def test_an_app_is_the_same_however_it_is_spelled(
    spelled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is given to `qworker run` names a module, and its only app is that module's."""
    monkeypatch.chdir(tmp_path)
    assert default_name(spelled, 1) == "old"
    assert same_owner(spelled, "old")


def test_apps_of_one_module_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their attribute; and modules in folders by the folders below the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two_apps.py").write_text(
        'from qworker import QWorker\na = QWorker("n")\nb = QWorker("n", name="billing")\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert name_of(load_app("two_apps:a"), "two_apps:a") == "two_apps:a"
    assert name_of(load_app("two_apps.py:b"), "two_apps.py:b") == "billing"
    assert default_name("shop/tasks.py", 1) == default_name("shop.tasks", 1) == "shop.tasks"
    assert default_name(str(tmp_path / "shop" / "tasks.py"), 1) == "shop.tasks"
    assert default_name("/releases/41/tasks.py", 1) == "tasks"
    assert not same_owner("two_apps:b", "two_apps:a")
    assert not same_owner("other.py", "old")


def test_a_name_of_an_app_is_checked() -> None:
    """It is written to Redis and to terminals."""
    with pytest.raises(InvalidNameError, match="name:"):
        QWorker("n", name="a b")


def test_an_app_removes_schedules_that_older_versions_registered_by_its_spelling(
    client: Client, namespace: str, open_queue: OpenQueue
) -> None:
    """And nothing of others, whose schedules of the same name become its own."""
    open_queue("a")
    register(client, namespace, "old.py:app", hourly("old.py:app", "kept", "gone"))
    register(client, namespace, "other", hourly("other", "theirs", "taken"))

    done = register(client, namespace, "old", hourly("old", "kept", "taken"))

    assert done.removed == ("gone",)
    assert names(client, namespace) == {"kept": "old", "taken": "old", "theirs": "other"}


def test_schedules_stop_firing_a_week_after_their_last_worker(
    client: Client, namespace: str, open_queue: OpenQueue, logs: list[dict[str, Any]]
) -> None:
    """The log says so; they continue, with missed slots, when a worker of the app is seen again."""
    open_queue("a")
    register(client, namespace, "gone", hourly("gone", "s"))
    long_ago(client, namespace, 2, "s")
    now_ms = server_now_ms(client.execute)
    note_owner(client.execute, namespace, "gone", now_ms - ORPHANED_MS - 1000)

    assert fired(client, namespace) == 0
    (listed,) = list_schedules(client, namespace)
    assert (listed.orphaned, listed.fires) == (True, False)
    assert [line["app"] for line in logs if line["event"] == "schedule_orphaned"] == ["gone"]

    note_owner(client.execute, namespace, "gone", now_ms - ORPHANED_MS + 60_000)
    assert fired(client, namespace) == 2
    (listed,) = list_schedules(client, namespace)
    assert (listed.orphaned, listed.fires) == (False, True)


@pytest.mark.slow
def test_an_app_that_was_never_noted_fires_forever(
    client: Client, namespace: str, open_queue: OpenQueue
) -> None:
    """Workers of older versions do not record their apps: a new daemon must not end their schedules."""
    queue = open_queue("a")
    register(client, namespace, "app", hourly("app", "s"))
    long_ago(client, namespace, 24 * 30, "s")
    queue.redis.delete(owners_key(namespace))
    assert fired(client, namespace) > 0
    queue.redis.set(owners_key(namespace), "not a hash")
    long_ago(client, namespace, 24 * 30, "s")
    assert fired(client, namespace) > 0
    queue.redis.delete(owners_key(namespace))


def test_an_app_without_schedules_is_forgotten(
    client: Client, namespace: str, open_queue: OpenQueue
) -> None:
    """The list of apps grows with schedules only."""
    open_queue("a")
    register(client, namespace, "app", hourly("app", "s"))
    assert read_owners(client.execute, namespace).keys() == {"app"}
    register(client, namespace, "app", {})
    assert read_owners(client.execute, namespace) == {}


def test_an_app_is_forgotten_with_its_last_schedule(
    client: Client, namespace: str, open_queue: OpenQueue
) -> None:
    """Not while a queue cannot be read, where an orphan of the app may be that would fire again."""
    queue, other = open_queue("a"), open_queue("b")
    register(client, namespace, "app", hourly("app", "s", "t"))
    register(client, namespace, "next", hourly("next", "n", queue="b"))
    remove_chosen(client, namespace, {"a": ["s"]})
    assert read_owners(client.execute, namespace).keys() == {"app", "next"}
    queue.redis.rename(other.keys.schedules, other.keys.dead)
    queue.redis.set(other.keys.schedules, "not a hash")
    remove_chosen(client, namespace, {"a": ["t"]})
    assert read_owners(client.execute, namespace).keys() == {"app", "next"}
    queue.redis.rename(other.keys.dead, other.keys.schedules)
    register(client, namespace, "app", hourly("app", "s"))
    remove_chosen(client, namespace, {"a": ["s", "unknown"]})
    assert read_owners(client.execute, namespace).keys() == {"next"}


def test_a_paused_schedule_rests_until_it_is_resumed(
    client: Client, namespace: str, open_queue: OpenQueue
) -> None:
    """At once for a reaper that knows it, through new registrations, and without missed slots afterwards."""
    open_queue("a")
    keys = QueueKeys(namespace, "a")
    register(client, namespace, "app", hourly("app", "s", "t"))
    reaper = Reaper(client, namespace, tick_ms=1000)
    reaper.tick()
    assert pause(client, keys, "s") is True
    assert pause(client, keys, "s") is False
    long_ago(client, namespace, 3, "s")
    for entry in reaper.scheduler.known.jobs.values():
        entry.fired_ms = entry.due_ms = 0
    reaper.tick()
    reaper.close()
    assert fired(client, namespace) == 0
    register(
        client,
        namespace,
        "app",
        hourly("app", "s", body='{"task": "changed"}') | hourly("app", "t"),
    )
    paused = {
        schedule.name: schedule.paused_ms is not None
        for schedule in list_schedules(client, namespace)
    }
    assert paused == {"s": True, "t": False}

    assert resume(client, keys, "s") is True
    assert resume(client, keys, "s") is False
    assert fired(client, namespace) == 0
    long_ago(client, namespace, 1, "s")
    assert fired(client, namespace) == 1


def test_a_schedule_runs_now_beside_its_times(
    client: Client, namespace: str, open_queue: OpenQueue
) -> None:
    """With the same envelope, also while it is paused; its next slot stays where it was."""
    open_queue("a")
    keys = QueueKeys(namespace, "a")
    register(
        client, namespace, "app", hourly("app", "s", max_receives=3, priority=4, ttl_ms=60_000)
    )
    pause(client, keys, "s")
    before = read_schedules(client.execute, keys)["s"]
    stored = before.stored
    assert stored is not None

    message_id = run_now(client, QueueRef(namespace, "a", client.ids), "s", stored)

    with client.factory.redis(keys.ready[4]) as redis:
        (item,) = redis.lrange(keys.ready[4], 0, -1)  # type: ignore[misc]
    header, body = item.split(b"\n", 1)
    assert header.startswith(b"q1 " + message_id.encode())
    assert b" m=3" in header
    assert b" p=4" in header
    assert b" x=" in header
    assert body == b'{"task": "do"}'
    assert read_schedules(client.execute, keys)["s"] == before
