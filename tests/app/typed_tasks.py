"""Tasks as a type checker sees them; read by mypy, never run. Comments mark the expected errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, assert_type

from qworker import (
    Chain,
    Failure,
    Handle,
    Handles,
    QueueFullError,
    QWorker,
    ResultError,
    Retry,
    Run,
    SyncRun,
    chain,
    every,
    group,
)
from qworker.app.sender import Call, Sender
from qworker.app.task import BatchTask
from qworker.client.message import Message, Stored

app = QWorker("shop")


@dataclass
class Event:
    name: str


event = Event("sale")


# -- plain -------------------------------------------------------------------------------------


@app.task
def plain(number: int, text: str = "") -> str:
    return text * number


@app.task(queue="mail", retry=Retry.none(), time_limit=None)
def with_options(number: int, *, text: str) -> None: ...


assert_type(plain(1), str)
assert_type(plain.send(1, text="x"), str)
assert_type(plain.call(1), Call[str])
assert_type(plain.send_many(plain.call(n) for n in range(3)), list[str])
assert_type(plain.start_many(plain.call(n) for n in range(3)), Handles[str])
assert_type(plain.start_many([plain.call(1)]).results("1m"), list[str])
assert_type(plain.send_later("1m", 1, "x"), str)
assert_type(plain.options(ttl="1h").send(2), str)
plain("x")  # error: [arg-type]
plain.send()  # error: [call-arg]
plain.send("x")  # error: [arg-type]
plain.send_later("1m", "x")  # error: [arg-type]
plain.options(ttl="1h").send("x")  # error: [arg-type]
plain.send_many([1])  # error: [list-item]

with_options(1, text="x")
assert_type(with_options.send(1, text="x"), str)
with_options.send(1, "x")  # error: [call-arg]


# -- async -------------------------------------------------------------------------------------


@app.task
async def later(number: int) -> str:
    return str(number)


async def use_later() -> None:
    assert_type(await later(1), str)
    assert_type(await later.asend(1), str)
    assert_type(await later.asend_later("1s", 1), str)
    assert_type(await later.asend_many([later.call(1)]), list[str])
    assert_type(later.send(1), str)
    await later("x")  # error: [arg-type]
    await later.asend("x")  # error: [arg-type]


# -- results -----------------------------------------------------------------------------------


@app.task(result="1h")
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(result="1h")
async def later_total(numbers: list[int]) -> int:
    return sum(numbers)


assert_type(total.start([1]), Handle[int])
assert_type(total.start([1]).result("1s"), int)
assert_type(total.options(priority=3).start([1]), Handle[int])
assert_type(total.handle("id"), Handle[int])
assert_type(later_total.start([1]), Handle[int])
assert_type(later_total.handle("id").result(0), int)
assert_type(app.handle("q", "id"), Handle[Any])
total.start("x")  # error: [arg-type]
total.start()  # error: [call-arg]
total.start([1]).result([])  # error: [arg-type]


async def use_results() -> None:
    assert_type(await total.astart([1]), Handle[int])
    assert_type(await later_total.start([1]), int)
    assert_type(await (await later_total.astart([1])).aresult("1s"), int)


# -- chains ------------------------------------------------------------------------------------


@app.task(result="1h")
async def plain_length(text: str) -> int:
    return len(text)


@app.task(result="1h")
def tell(number: int, *, text: str = "") -> str:
    return text * number


assert_type(total.call([1]), Call[int])
assert_type(later_total.call([1]), Call[int])
assert_type(chain(total.call([1]), tell.then()).start(), Handle[str])
assert_type(chain(total.call([1]), tell.then(text="x"), plain_length.then()).start(), Handle[int])
assert_type(chain(later_total.call([1]), tell.options(ttl="1h").then()).send(), str)
tell.then(1)  # error: [call-arg] [arg-type]
tell.then(text=1)  # error: [arg-type]
chain(total.call([1]), plain_length.then())  # error: [misc]
chain(total.call([1]), tell.then(), tell.then())  # error: [misc]


async def use_chains() -> None:
    started = await chain(total.call([1]), tell.then()).astart()
    assert_type(await started, str)


# -- groups of calls ---------------------------------------------------------------------------


@app.task(result="1h")
def join_all(lengths: list[int | Failure], text: str = "") -> str:
    """Gets values and failures."""
    return text


@app.task(result="1h")
async def join_values(lengths: list[int]) -> float:
    """Gets values alone."""
    return float(sum(lengths))


assert_type(group(total.call([n]) for n in (1, 2)).then(join_all, "x").start(), Handle[str])
assert_type(group([total.call([1])]).then(join_all).send(), str)
assert_type(
    group([total.call([1])], policy="successes").then(join_values).start(id="one"), Handle[float]
)
assert_type(group([total.call([1])], policy="first").then(tell).start(), Handle[str])
first = group([total.call([1])], policy="first", cancel_rest=True).then(tell)
assert_type(first.start(), Handle[str])
group([total.call([1])], policy="all", cancel_rest=True)  # error: [call-overload]
group([total.call([1])]).then(join_values)  # error: [call-overload]
group([total.call([1])], policy="first").then(join_values)  # error: [call-overload]
group([total.call([1])]).then(join_all, 5)  # error: [call-overload]

assert_type(
    chain(group([total.call([1])]).then(join_all), plain_length.then()).start(), Handle[int]
)
mixed = group([chain(total.call([1]), tell.then(), plain_length.then()), total.call([2])])
assert_type(mixed.then(join_all).start(), Handle[str])
several = group(plain_length.then() for _ in (1, 2)).then(join_all)
assert_type(chain(total.call([1]), tell.then(), several, plain_length.then()), Chain[int])
chain(total.call([1]), several)  # error: [misc]


# -- batch -------------------------------------------------------------------------------------


@app.task(batch=500)
async def load(events: list[Event]) -> None: ...


@app.task(queue="events", batch=10, max_wait="1s", max_receives=3)
def settle(events: Sequence[Event]) -> list[BaseException | None]:
    return [None for _ in events]


assert_type(load, BatchTask[Event, Coroutine[Any, Any, None]])
assert_type(load.send(event), str)
assert_type(load.call(event), Call[None])
assert_type(load.send_many(load.call(item) for item in [event]), list[str])
assert_type(load.send_later("1m", event), str)
assert_type(load.options(priority=9), Sender[[Event], Coroutine[Any, Any, None]])
assert_type(load.options(priority=9).send(event), str)
load.send([event])  # error: [arg-type]
load.send()  # error: [call-arg]
load.send(event, event)  # error: [call-arg]
load.call([event])  # error: [call-overload]
load.options(priority=9).send([event])  # error: [arg-type]

assert_type(settle, BatchTask[Event, list[BaseException | None]])
assert_type(settle([event]), list[BaseException | None])
settle(event)  # error: [arg-type]


async def use_load() -> None:
    await load([event])
    assert_type(await load.asend(event), str)
    assert_type(await load.asend_many([load.call(event)]), list[str])
    await load(event)  # error: [arg-type]
    await load.asend([event])  # error: [arg-type]


@app.task(batch=10)  # error: [arg-type]
def one_at_a_time(event: Event) -> None: ...


@app.task(max_wait="1s")  # error: [call-overload] [untyped-decorator]
def waits_for_nothing(event: Event) -> None: ...


@app.task(result=[])  # error: [call-overload] [untyped-decorator]
def keeps_for_no_time(event: Event) -> None: ...


@app.task(retries=3)  # error: [call-overload] [untyped-decorator]
def misses_its_option(event: Event) -> None: ...


@app.task(batch=10, priority="9")  # error: [call-overload] [untyped-decorator]
def mistypes_its_option(events: list[Event]) -> None: ...


# -- runs: loops know their items ----------------------------------------------------------------


def rows(after: int | None) -> list[Event]:
    return []


async def later_rows(after: int | None) -> list[Event]:
    return []


async def yielded_rows(after: int | None) -> AsyncIterator[Event]:
    yield event


def number_of(event: Event) -> int:
    return 1


@app.workflow
def loops(run: SyncRun) -> None:
    for number in run.each([1, 2], every=10, interval="1s"):
        assert_type(number, int)
    for row in run.each(rows, key=lambda row: len(row.name)):
        assert_type(row, Event)
    assert_type(run.each(rows, key=number_of), Iterator[Event])
    run.each(5)  # error: [call-overload]
    run.each(rows)  # error: [call-overload]
    run.each([1], every="10")  # error: [call-overload]


@app.workflow
def gathers(run: SyncRun) -> None:
    assert_type(run.gather(plain.call(number) for number in (1, 2)), list[str])
    assert_type(run.gather([plain.call(1)], return_exceptions=True), list[str | ResultError])
    assert_type(run.gather([plain.call(1)], policy="successes", name="x"), list[str])
    run.gather([1])  # error: [arg-type]


@app.workflow
async def async_gathers(run: Run) -> None:
    assert_type(await run.gather([plain.call(1)]), list[str])
    assert_type(await run.gather([plain.call(1)], return_exceptions=True), list[str | ResultError])


@app.workflow
async def async_loops(run: Run) -> None:
    async for number in run.each([1, 2]):
        assert_type(number, int)
    async for row in run.each(rows, key=number_of):
        assert_type(row, Event)
    async for row in run.each(later_rows, key=number_of):
        assert_type(row, Event)
    async for row in run.each(yielded_rows, key=number_of):
        assert_type(row, Event)
    async for row in run.each(yielded_rows(None)):
        assert_type(row, Event)
    for _ in run.each([1]):  # error: [attr-defined]
        pass


# -- queues: verbs are typed for the sync and the async queue ------------------------------------


def use_queue() -> None:
    queue = app.queue("emails")
    assert_type(queue.send("x", delay="3s"), str)
    assert_type(queue.receive(3, wait="1s", then=[queue]), list[Message])
    assert_type(queue.ack(*queue.receive()), list[Message])
    queue.receive(cnt=3)  # error: [call-arg]
    queue.extend("x", "3s")  # error: [arg-type]


async def use_queue_async() -> None:
    queue = app.aqueue("emails")
    assert_type(await queue.send("x"), str)
    assert_type(await queue.redrive("1-1", rate="100/s"), list[str])
    assert_type([message async for message in queue.scan("ready")], list[Stored])
    await queue.peek(state=1)  # error: [arg-type]


# -- schedules and errors ----------------------------------------------------------------------


@app.schedule(every("1m"))
def sweep() -> int:
    return 0


assert_type(sweep(), int)
sweep.send(1)  # error: [call-arg]


@app.schedule(every("1m"))  # error: [arg-type]
def sweep_one(number: int) -> None: ...


try:
    plain.send(1)
except QueueFullError as error:
    assert_type(error, QueueFullError)
