"""Schedules that a program adds, changes and removes while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from qworker import QWorker, cron, every
from qworker.client import schedules as rules
from qworker.daemon.reaper import Reaper
from qworker.daemon.schedule_listing import list_schedules
from qworker.daemon.schedules import register
from qworker.errors import InvalidNameError, InvalidOptionError
from qworker.wire.keyring import Keyring
from qworker.wire.keys import QueueKeys
from qworker.wire.schedule import StoredSchedule


def report(customer: int, lang: str = "en") -> None:
    pass


class Direct:
    """The sync methods, as coroutines."""

    def __init__(self, task: Any) -> None:
        self.task = task

    async def schedule(self, *args: Any, **kwargs: Any) -> bool:
        return bool(self.task.schedule(*args, **kwargs))

    async def unschedule(self, name: str) -> bool:
        return bool(self.task.unschedule(name))


class Awaited(Direct):
    """The async ones."""

    async def schedule(self, *args: Any, **kwargs: Any) -> bool:
        return bool(await self.task.aschedule(*args, **kwargs))

    async def unschedule(self, name: str) -> bool:
        return bool(await self.task.aunschedule(name))


@pytest.mark.parametrize("way", [Direct, Awaited])
def test_a_schedule_is_added_changed_and_removed(app: QWorker, way: type[Direct]) -> None:
    """It fires with its arguments and options; a worker that registers its app's leaves it alone."""
    task = app.task(queue="mail", max_receives=3)(report)
    redis_key = QueueKeys(app.namespace, "mail").schedules

    async def change() -> None:
        calls = way(task.options(priority=5, ttl="1h"))
        assert await calls.schedule("of-7", every("1h"), 7, lang="de")
        assert not await calls.schedule("of-7", every("1h"), 7, lang="de")
        with app.client.factory.redis(redis_key) as redis:
            redis.hset(redis_key, "of-7:fired", 1)
            assert await calls.schedule("of-7", every("1h"), 8, lang="de")
            assert redis.hget(redis_key, "of-7:fired") == b"1"  # the times are the same
        register(app.client, app.namespace, "", {})  # as the worker of an app without a name
        register(app.client, app.namespace, "jobs", {})
        (shown,) = list_schedules(app.client, app.namespace)
        assert (shown.name, shown.app, shown.task, shown.fires) == ("of-7", "", "report", True)
        assert Reaper(app.client, app.namespace).tick().fired == {("mail", "report"): 1}
        [message] = app.queue("mail").receive(1)
        assert message.body == b'{"task":"report","args":[8],"kwargs":{"lang":"de"}}'
        assert (message.flags["p"], message.flags["m"]) == ("5", "3")
        assert await calls.schedule("of-7", "0 4 * * *", 8)
        assert Reaper(app.client, app.namespace).tick().fired == {}
        assert await calls.unschedule("of-7")
        assert not await calls.unschedule("of-7")
        with app.client.factory.redis(redis_key) as redis:
            assert not redis.exists(redis_key)
        await app.aclose()

    asyncio.run(change())


@pytest.mark.bad_input("values: a schedule that cannot be")
@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("schedule", lambda task: task.schedule("a b", every("1h"), 1)),
        ("schedule", lambda task: task.schedule("s", "5m", 1)),
        ("schedule", lambda task: task.schedule("s", every("1h"), 1, lang="x" * 20_000)),
        ("delay", lambda task: task.options(delay="1m").schedule("s", every("1h"), 1)),
        ("unique", lambda task: task.options(unique="k").schedule("s", every("1h"), 1)),
        ("customer", lambda task: task.schedule("s", every("1h"), "x")),
        ("schedule", lambda task: task.unschedule("a:b")),
    ],
)
def test_a_wrong_schedule_is_refused(
    app: QWorker, field: str, call: Callable[[Any], object]
) -> None:
    """The error names what is wrong, and nothing is written."""
    task = app.task(queue="mail")(report)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each of our errors about values is one
        call(task)
    assert field in str(caught.value)
    assert list_schedules(app.client, app.namespace) == []


def test_schedules_of_an_app_are_its_own(app: QWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that code uses is refused, and so is one more than a queue may have; changes are not."""
    task = app.task(queue="mail")(report)
    spec = every("1h").spec
    stored = StoredSchedule(app="jobs", spec=spec, task="report", queue="mail", body="{}")
    register(app.client, app.namespace, "jobs", {"nightly": stored})
    for change in (
        lambda: task.schedule("nightly", every("2h"), 1),
        lambda: task.unschedule("nightly"),
    ):
        with pytest.raises(InvalidNameError, match="belongs to app 'jobs'"):
            change()
    monkeypatch.setattr(rules, "MAX_SCHEDULES", 2)
    assert task.schedule("first", every("1h"), 1)
    with pytest.raises(InvalidOptionError, match="has 2; remove some"):
        task.schedule("second", every("1h"), 1)
    assert task.schedule("first", every("2h"), 1)


def test_arguments_are_not_stored_unencrypted(app: QWorker) -> None:
    """Where messages are encrypted a schedule has none; without, it is signed like those of code."""
    pytest.importorskip("cryptography")
    app._keys = Keyring(signing={"a": b"k" * 32}, encryption={"a": b"e" * 32})
    with pytest.raises(InvalidOptionError, match="stored unencrypted"):
        app.task(queue="mail")(report).schedule("s", every("1h"), 1)

    @app.task(queue="mail")
    def sweep() -> None:
        pass

    sweep.schedule("s", cron("0 4 * * *"))
    with app.client.factory.redis(QueueKeys(app.namespace, "mail").schedules) as redis:
        value = redis.hget(QueueKeys(app.namespace, "mail").schedules, "s")
    assert StoredSchedule.parse(value).signature


def test_overlap_needs_a_task_whose_messages_end_after_it(app: QWorker) -> None:
    """At most once ends a message before its handler: no policy could hold, in code or at run time."""
    once = app.task(queue="mail", at_most_once=True, name="once")(lambda: None)
    for declare in (
        app.schedule(every("1h", overlap="skip")),
        lambda task: task.schedule("s", every("1h", overlap="queue")),
    ):
        with pytest.raises(InvalidOptionError, match="at_most_once"):
            declare(once)
    assert app.schedules == {}
