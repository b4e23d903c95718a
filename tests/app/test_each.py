"""Loops of runs: `run.each` in a plain and in an async workflow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from qworker import (
    InvalidNameError,
    InvalidOptionError,
    InvalidResultError,
    Keyring,
    LeaseLostError,
    QWorker,
    Retry,
    Run,
    SourceShrankError,
    SyncRun,
    TaskEndedError,
    TaskFailedError,
    current,
)
from qworker.client.inspect.runs import RunStep
from qworker.durations import duration_ms
from qworker.testing import drain
from tests.app.test_runs import Approval, Calls, FailingError, ran, stored


@dataclass
class Row:
    """An item of a table."""

    id: int


class Table:
    """Rows in the order of their ids, read behind a key."""

    def __init__(self, number: int) -> None:
        self.rows = [Row(number) for number in range(1, number + 1)]
        self.asked: list[int | None] = []

    def page(self, after: int | None) -> list[Row]:
        """Return ten rows."""
        self.asked.append(after)
        return [row for row in self.rows if row.id > (after or 0)][:10]

    def all(self, after: int | None) -> Iterator[Row]:
        """Yield all rows."""
        self.asked.append(after)
        yield from [row for row in self.rows if row.id > (after or 0)]

    async def apage(self, after: int | None) -> list[Row]:
        """The same, async."""
        return self.page(after)

    async def aall(self, after: int | None) -> AsyncIterator[Row]:
        """The same as a generator."""
        for row in self.all(after):
            yield row


def position(app: QWorker, run_id: str, queue: str = "default") -> list[RunStep]:
    """The positions of the loops of a run."""
    steps = app.queue(queue).run_steps(run_id) or []
    return [step for step in steps if step.position is not None]


class Letters:
    """Letters that can be read from the beginning again, but not by index."""

    def __iter__(self) -> Iterator[str]:
        return iter("abcdefgh")


class LaterLetters:
    """The same, async."""

    async def __aiter__(self) -> AsyncIterator[str]:
        for letter in "abcdefgh":
            yield letter


@pytest.mark.parametrize("source", [[*"abcdefgh"], range(8), Letters()])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_loop_gives_out_each_item_once(app: QWorker, source: Any, kind: str) -> None:
    """Interrupted after every three items, each activation continues where the last one ended."""
    seen: list[Any] = []
    activations: list[int] = []
    _workflow(app, kind, source, seen, activations)
    handle = app.tasks["loop"].start()
    drained = drain(app, interrupt_after=3)
    assert handle.result(0) == 8
    assert seen == [*source]
    assert len(activations) == 3
    assert (drained.failed, drained.released) == (0, 2)


def _workflow(
    app: QWorker, kind: str, source: Any, seen: list[Any], activations: list[int], **more: Any
) -> None:
    if kind == "sync":

        @app.workflow(name="loop")
        def loop(run: SyncRun) -> int:
            activations.append(1)
            for item in run.each(source, **more):
                seen.append(item)
            return len(seen)

    else:

        @app.workflow(name="loop")
        async def aloop(run: Run) -> int:
            activations.append(1)
            async for item in run.each(source, **more):
                seen.append(item)
            return len(seen)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("sync", "page"),
        ("sync", "all"),
        *(("async", name) for name in ("page", "all", "apage", "aall")),
    ],
)
def test_a_function_is_asked_for_the_items_behind_a_key(app: QWorker, kind: str, name: str) -> None:
    """A page at a time or all at once, until it returns none."""
    table, seen, activations = Table(25), list[Row](), list[int]()
    source: Callable[[int | None], Any] = getattr(table, name)
    _workflow(app, kind, source, seen, activations, key=lambda row: row.id)
    app.tasks["loop"].send()
    drain(app, interrupt_after=12)
    assert [row.id for row in seen] == [*range(1, 26)]
    assert len(activations) == 3
    by_page = [None, 10, 12, 22, 24, 25]
    assert table.asked == (by_page if "page" in name else [None, 12, 24, 25])


def test_an_async_iterable_is_read_up_to_the_position(app: QWorker) -> None:
    """It has neither indexes nor keys."""
    seen: list[str] = []
    _workflow(app, "async", LaterLetters(), seen, [])
    app.tasks["loop"].send()
    drain(app, interrupt_after=3)
    assert seen == [*"abcdefgh"]


def test_items_after_the_kept_position_come_again(app: QWorker) -> None:
    """A worker that dies has kept every third position: at most the items since then are repeated."""
    seen: list[int] = []

    @app.workflow(retry=Retry.fixed("1s"))
    def loop(run: SyncRun) -> None:
        for item in run.each(range(10), every=3):
            seen.append(item)
            if len(seen) == 8:
                run._steps.loops.clear()  # as if nothing were kept at the end
                raise FailingError

    loop.send()
    ran(app)
    assert seen == [*range(8), 6, 7, 8, 9]


def test_a_position_is_kept_once_its_interval_has_passed(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long items need not wait for their number."""
    kept: list[int] = []
    now = 1000.0
    monkeypatch.setattr("qworker.app.runs.loops.time.monotonic", lambda: now)

    @app.workflow
    def loop(run: SyncRun) -> None:
        nonlocal now
        for item in run.each(range(10), interval="5s"):
            kept.extend(step.position or 0 for step in position(app, run.id))
            if item % 4 == 3:
                now += 5

    loop.send()
    drain(app)
    assert kept == [4, 4, 4, 4, 8, 8]


@pytest.mark.slow
def test_a_failure_keeps_the_position(app: QWorker) -> None:
    """The next try begins with the item that failed; one that always fails is soon a dead letter."""
    seen: list[int] = []

    @app.workflow(retry=Retry.fixed("1s"), max_receives=3)
    async def loop(run: Run) -> None:
        async for item in run.each([*range(10)]):
            seen.append(item)
            if item == 7 or (item == 3 and seen.count(3) < 3):
                raise FailingError

    handle = loop.start()
    ran(app)
    assert seen == [0, 1, 2, 3, 3, 3, 4, 5, 6, 7, 7, 7]
    with pytest.raises(TaskFailedError):
        handle.result(0)
    [kept] = position(app, handle.id)
    assert (kept.name, kept.position) == ("*each", 7)


@pytest.mark.slow
def test_failures_before_a_position_do_not_count(app: QWorker) -> None:
    """A run that fails at every item, but comes further, ends."""
    failed: set[int] = set()

    @app.workflow(retry=Retry.fixed("1s"), max_receives=2)
    def loop(run: SyncRun) -> None:
        for item in run.each(range(5)):
            if item not in failed:
                failed.add(item)
                raise FailingError

    handle = loop.start()
    ran(app)
    assert handle.result(0) is None


def test_a_loop_that_has_ended_is_not_read_again(app: QWorker) -> None:
    """Neither its source nor its items, however often the run continues behind it."""
    table, calls, seen = Table(5), Calls(failures=1), list[int]()

    @app.workflow(retry=Retry.fixed("1s"))
    def loop(run: SyncRun) -> None:
        for row in run.each(table.page, key=lambda row: row.id):
            seen.append(row.id)
        calls.fail()
        run.sleep("1d")
        for _ in run.each(table.page, key=lambda row: row.id, name="again"):
            seen.append(0)

    handle = loop.start()
    ran(app)
    assert seen == [1, 2, 3, 4, 5, 0, 0, 0, 0, 0]
    assert table.asked == [None, 5, None, 5]
    assert [(step.name, step.position) for step in position(app, handle.id)] == [
        ("*page", 5),
        ("*again", 5),
    ]


def test_a_source_without_items_is_a_loop_without_items(app: QWorker) -> None:
    """Which has ended."""

    @app.workflow
    def loop(run: SyncRun) -> int:
        return len([*run.each([])]) + len([*run.each([])])

    handle = loop.start()
    drain(app)
    assert handle.result(0) == 0
    assert [step.name for step in position(app, handle.id)] == ["*each", "*each#2"]


def test_steps_belong_to_their_item(app: QWorker) -> None:
    """An activation that begins at a later item finds those of its own; behind the position they are forgotten."""
    calls, fields = Calls(), list[set[bytes]]()

    @app.workflow(retry=Retry.fixed("1s"))
    def loop(run: SyncRun) -> int:
        total = run.step(calls.charge, "before").cents
        for item in run.each([*"abcde"], name="rows", every=2):
            fields.append({name for name in stored(app, run.id) if b"[" in name})
            total += run.step(calls.charge, item).cents
            run.step(calls.charge, item)
        run.step(calls.charge, "after")
        return total

    handle = loop.start()
    drain(app, interrupt_after=3)
    assert calls.made == ["before", *"aabbccddee", "after"]
    assert fields == [
        set(),
        {b"rows[0].charge", b"rows[0].charge#2"},
        set(),
        # Interrupted, so that the third is kept.
        set(),
        {b"rows[3].charge", b"rows[3].charge#2"},
    ]
    steps = app.queue("default").run_steps(handle.id) or []
    assert [step.name for step in steps] == ["charge", "*rows", "charge#2"]
    size = sum(
        len(name) + len(value) - 3 - 13 - (4 if name == b"*rows" else 0)
        for name, value in stored(app, handle.id).items()
        if name != b"@bytes"
    )
    assert int(stored(app, handle.id)[b"@bytes"]) == size


def test_a_failed_item_finds_its_steps(app: QWorker) -> None:
    """Those that it had recorded before it failed."""
    calls = Calls(failures=1)

    @app.workflow(retry=Retry.fixed("1s"))
    async def loop(run: Run) -> None:
        async for item in run.each([*"abc"]):
            await run.step(calls.pay, item)
            if item == "b":
                calls.fail()
            await run.step("again", calls.pay, item)

    loop.send()
    ran(app)
    assert calls.made == [*"aabbcc"]


def test_a_run_sleeps_and_waits_within_an_item(app: QWorker) -> None:
    """Each item has its own sleep; those that are done do not come again."""
    seen: list[str] = []

    @app.workflow
    def loop(run: SyncRun) -> None:
        for item in run.each([*"ab"]):
            run.sleep("1d")
            run.sleep("1d")
            seen.append(run.wait(Approval, name=item).by)

    handle = loop.start()
    handle.signal(Approval("ann"), name="a")
    handle.signal(Approval("bob"), name="b")
    drained = drain(app)
    assert seen == ["ann", "bob"]
    assert duration_ms(drained.waited, "waited") == pytest.approx(4 * 86_400_000, abs=60_000)
    assert [name for name in stored(app, handle.id) if name.startswith(b"~each")] == []


def test_loops_can_be_nested(app: QWorker) -> None:
    """An inner loop has a position for each item of the outer one, which is forgotten with that."""
    seen: list[str] = []

    @app.workflow
    async def loop(run: Run) -> None:
        async for outer in run.each([*"ab"], name="outer"):
            async for inner in run.each([*"xyz"], name="inner"):
                seen.append(await run.step("join", "".join, [outer, inner]))

    handle = loop.start()
    drain(app, interrupt_after=2)
    assert seen == ["ax", "ay", "az", "bx", "by", "bz"]
    assert {*stored(app, handle.id)} - {b"@bytes"} == {b"*outer"}


def test_a_loop_may_be_left(app: QWorker) -> None:
    """By a break: the item that it leaves is not done, and the run takes the same way again."""
    seen: list[str] = []
    calls = Calls(failures=1)

    @app.workflow(retry=Retry.fixed("1s"))
    def loop(run: SyncRun) -> str:
        for item in run.each([*"abcd"]):
            seen.append(item)
            if item == "c":
                break
        found = run.step("found", str, item)
        calls.fail()
        return found

    handle = loop.start()
    ran(app)
    assert handle.result(0) == "c"
    assert seen == [*"abcc"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_source_that_shrank_is_an_error(app: QWorker, kind: str) -> None:
    """Items before the position are gone, so the next one is not known: nothing is skipped in silence."""
    items = [*"abcdef"]

    def change(item: str) -> None:
        if item == "d":
            items.remove("a")
            raise FailingError

    if kind == "sync":

        @app.workflow(retry=Retry.fixed("1s"), max_receives=2)
        def loop(run: SyncRun) -> None:
            for item in run.each(items, name="rows"):
                change(item)

    else:

        class Shrinking:
            async def __aiter__(self) -> AsyncIterator[str]:
                for item in [*items] if len(items) > 5 else items[:2]:
                    yield item

        @app.workflow(retry=Retry.fixed("1s"), max_receives=2)
        async def aloop(run: Run) -> None:
            async for item in run.each(Shrinking(), name="rows"):
                change(item)

    [task] = app.tasks.values()
    task.send()
    errors = drain(app, errors="collect").errors
    [error] = [error for error in errors if isinstance(error, SourceShrankError)]
    assert (error.loop, error.done, error.length) == ("rows", 3, 5 if kind == "sync" else 2)
    assert "only let it grow at its end" in str(error)


def test_a_list_may_grow(app: QWorker) -> None:
    """At its end, also while it is read."""
    items, seen = [1], list[int]()

    @app.workflow
    def loop(run: SyncRun) -> None:
        for item in run.each(items):
            seen.append(item)
            if item < 6:
                items.append(item + 1)

    loop.send()
    drain(app, interrupt_after=2)
    assert seen == [1, 2, 3, 4, 5, 6]


def test_keys_get_back_to_the_source_as_they_were(app: QWorker) -> None:
    """By the annotation of its parameter; a source without one, which would get text, is refused at the first item."""
    first = datetime(2026, 1, 1, tzinfo=UTC)
    days = [first + timedelta(days=number) for number in range(5)]

    def typed(after: datetime | None) -> list[datetime]:
        return [day for day in days if after is None or day > after][:2]

    def untyped(after):  # type: ignore[no-untyped-def]  # as users write it
        return typed(after)

    seen: list[datetime] = []

    @app.workflow
    def loop(run: SyncRun) -> None:
        for day in run.each(typed, key=lambda day: day):
            seen.append(day)

    @app.workflow(retry=Retry.none())
    def wrong(run: SyncRun) -> None:
        for _ in run.each(untyped, key=lambda day: day):
            raise AssertionError("no item is given out")

    loop.send()
    drain(app, interrupt_after=3)
    assert seen == days
    wrong.send()
    [error] = drain(app, errors="collect").errors
    assert isinstance(error, InvalidResultError)
    assert "annotate the parameter" in str(error)


def test_wrong_loops_are_refused(app: QWorker) -> None:
    """Sources that cannot be read again, wrong keys, numbers and names: each before its first item is given out."""

    def stuck(after: int | None) -> list[int]:
        return [1, 2]

    def none() -> list[int]:
        return []

    def numbers(after: object) -> list[int]:
        return [1]

    raised: list[str] = []

    @app.workflow
    def loop(run: SyncRun) -> None:
        wrong: tuple[tuple[type[Exception], str, Any, dict[str, Any]], ...] = (
            (InvalidOptionError, "cannot resume in 5", 5, {}),
            (InvalidOptionError, "cannot resume in 'text'", "text", {}),
            (InvalidOptionError, "cannot resume in {1}", {1}, {}),
            (InvalidOptionError, "without key=", stuck, {}),
            (InvalidOptionError, "is not a function", stuck, {"key": "id"}),
            (InvalidOptionError, "is not a function, and a key", [1], {"key": abs}),
            (InvalidOptionError, "takes no argument", none, {"key": abs}),
            (InvalidOptionError, "the key 2 again", stuck, {"key": lambda _: 2}),
            (
                InvalidResultError,
                "has a key of 5,002 bytes",
                numbers,
                {"key": lambda _: "k" * 5000},
            ),
            (InvalidResultError, "keys are JSON", numbers, {"key": lambda _: object()}),
            (InvalidResultError, "has the key None", numbers, {"key": lambda _: None}),
            (InvalidOptionError, "every", [1], {"every": 0}),
            (InvalidOptionError, "every", [1], {"every": True}),
            (InvalidOptionError, "interval", [1], {"interval": "50ms"}),
            (InvalidNameError, "loop: .* is not a valid name", [1], {"name": "a b"}),
        )
        for error, match, items, options in wrong:
            with pytest.raises(error, match=match):
                [*run.each(items, **options)]
            raised.append(match)
        for _ in run.each([1], name="n" * 100):
            with pytest.raises(InvalidNameError, match="longer than 128 characters with its loop"):
                run.step("s" * 60, lambda: 1)
            raised.append("long")

    handle = loop.start()
    drain(app)
    assert handle.result(0) is None
    assert len(raised) == 16
    wrong: Any
    for wrong in (0, True, "3"):
        with pytest.raises(InvalidOptionError, match="interrupt_after"):
            drain(app, interrupt_after=wrong)


def test_a_position_costs_one_call(app: QWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every hundred items, and one at the end; an item itself costs none."""
    calls: list[str] = []
    client = app.queue("default").client
    execute = client.execute

    def counted(command: Any, *args: Any, **options: Any) -> Any:
        calls.append(command.script.name if command.script else "")
        return execute(command, *args, **options)

    monkeypatch.setattr(client, "execute", counted)

    @app.workflow
    def loop(run: SyncRun) -> None:
        calls.clear()
        for _ in run.each(range(1000), interval="1h"):
            pass
        assert calls == ["position"] * 11

    handle = loop.start()
    drain(app)
    assert handle.result(0) is None


# -- the end of an activation ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_cancelled_run_ends_between_two_items(app: QWorker, kind: str) -> None:
    """At the next one, and is not resumed."""
    seen: list[int] = []

    def see(item: int) -> None:
        seen.append(item)
        delivery = current()
        assert delivery is not None
        if item == 3:
            lease: Any = delivery._lease
            lease._board.orders.cancel(lease.id, delivery._position, 1.0)

    if kind == "sync":

        @app.workflow
        def loop(run: SyncRun) -> None:
            for item in run.each(range(10)):
                see(item)

    else:

        @app.workflow
        async def aloop(run: Run) -> None:
            async for item in run.each(range(10)):
                see(item)

    [task] = app.tasks.values()
    handle = task.start()
    drain(app)
    assert seen == [0, 1, 2, 3]
    with pytest.raises(TaskEndedError, match="cancelled"):
        handle.result(0)


def test_a_zombie_keeps_no_position(app: QWorker) -> None:
    """Its lease ran out within an item, and another worker has the run: the late one moves nothing."""
    queue = app.queue("default")
    seen: list[int] = []
    held: Sequence[Any] = []

    @app.workflow(retry=Retry.fixed("1s"))
    def loop(run: SyncRun) -> None:
        nonlocal held
        for item in run.each(range(4), every=1):
            seen.append(item)
            if item == 2 and not held:
                with app.client.factory.redis(queue.keys.meta) as redis:
                    [lease] = redis.zrange(queue.keys.unacked, 0, -1)  # type: ignore[misc]
                    redis.zadd(queue.keys.unacked, {lease: 1})
                queue.reap()
                held = queue.receive(1)

    handle = loop.start()
    drained = drain(app, errors="collect", max_messages=1)
    assert [type(error) for error in drained.errors] == [LeaseLostError]
    assert [step.position for step in position(app, handle.id)] == [2]
    queue.release(*held)
    ran(app)
    assert seen == [0, 1, 2, 2, 3]


def test_a_function_that_catches_everything_is_interrupted_all_the_same(app: QWorker) -> None:
    """It gets no other item and calls no step, and what it returns is not the end of the run."""
    seen: list[int] = []
    calls = Calls()

    @app.workflow
    def loop(run: SyncRun) -> str:
        try:
            for item in run.each(range(4)):
                seen.append(item)
        except BaseException:
            try:
                run.step(calls.charge, "caught")
            except BaseException:
                return "caught"
        return "whole"

    handle = loop.start()
    drain(app, interrupt_after=3)
    assert handle.result(0) == "whole"
    assert (seen, calls.made) == ([0, 1, 2, 3], [])


def test_positions_are_protected_as_steps_are(store_url: str, namespace: str) -> None:
    """Keys may be secret; the number of items is not."""
    keyring = Keyring(signing={"k": b"s" * 32}, encryption={"k": b"e" * 32})
    app = QWorker(namespace, url=store_url, keys=keyring)
    seen: list[str] = []

    def names(after: str | None) -> list[str]:
        return [name for name in ("ann", "bob", "eve") if after is None or name > after]

    @app.workflow(retry=Retry.none())
    def loop(run: SyncRun) -> None:
        for name in run.each(names, key=lambda name: name):
            seen.append(name)
            if name == "eve":
                raise FailingError

    handle = loop.start()
    ran(app)
    kept = stored(app, handle.id)[b"*names"]
    assert b" d=2 " in kept
    assert b"bob" not in kept
    [step] = position(app, handle.id)
    assert (step.position, step.value) == (2, b'{"done":2,"after":"bob"}')
    app.close()
