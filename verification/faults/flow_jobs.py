"""Chains, groups of calls and runs under fire: `qworker run verification.faults.flow_jobs:app`.

A chain of number n has the keys `<producer>/1-n` to `<producer>/5-n`, one for the message of each step, which is the
value of the step before. A run has the key `<producer>/run-n`. A group of calls has the keys `<producer>/m0-n` to
`<producer>/m4-n` for its calls, of which the last two are a group in it, `<producer>/inner-n` for the callback of
that, and `<producer>/all-n` for its own. A run that gathers has the keys `<producer>/g0-n` to `<producer>/g3-n` for its
calls, of which the middle two are a group, `<producer>/mid-n` for the callback of that, and `<producer>/gathered-n` for
itself. A race, a group whose first success cancels the rest, has the keys `<producer>/quick-n`, `<producer>/slow-n`
with `<producer>/after-n` behind it, and `<producer>/late-n` for its calls, and `<producer>/won-n` for its callback.
"""

from __future__ import annotations

import random
from typing import Final

from qworker import Failure, Retry, Run, SyncRun, group
from verification.faults.jobs import app, delivery, history

__all__ = [
    "CHAIN_STEPS",
    "GO",
    "LATE",
    "agathering",
    "ajourney",
    "alink",
    "amember",
    "app",
    "follow",
    "gather",
    "gathering",
    "journey",
    "link",
    "member",
    "precede",
    "win",
]

CHAIN_STEPS: Final = 5
RUN_STEPS: Final = 10
#: The signal that each run waits for.
GO: Final = "go"
#: The delay of the call of a race that has to be cancelled before.
LATE: Final = "3s"
_SLEEPS_BEFORE, _WAITS_BEFORE = 3, 6
_retry = Retry.fixed("100ms")


def _follow(key: str) -> str:
    """Note one step of a chain, and return the key of the next."""
    history.note("started", key, delivery().receive_count)
    history.note("link", key, delivery().message_id)
    history.note("done", key)
    producer, _, number = key.rpartition("-")
    base, _, step = producer.rpartition("/")
    if int(step) == CHAIN_STEPS:
        history.note("ended", key)
    return f"{base}/{int(step) + 1}-{number}"


@app.task(queue="load", retry=_retry, result="1m")
def link(key: str) -> str:
    """Be one step of a chain."""
    return _follow(key)


@app.task(queue="aload", retry=_retry, result="1m")
async def alink(key: str) -> str:
    """Be one step of a chain in another queue."""
    return _follow(key)


def _be_member(key: str) -> str:
    history.note("started", key, delivery().receive_count)
    history.note("done", key)
    return key


@app.task(queue="load", retry=_retry, result="1m")
def member(key: str) -> str:
    """Be one call of a group."""
    return _be_member(key)


@app.task(queue="aload", retry=_retry, result="1m")
async def amember(key: str) -> str:
    """Be one call of a group in another queue."""
    return _be_member(key)


@app.task(queue="load", retry=_retry, result="1m")
def gather(values: list[str | Failure], key: str, calls: list[str]) -> str:
    """Be the callback of a group: its values are the keys of its calls, in order."""
    history.note("started", key, delivery().receive_count)
    history.note("link", key, delivery().message_id)
    if values != calls:
        history.note("misplaced", key)
    history.note("done", key)
    if "/all-" in key:
        history.note("ended", key)
    return key


@app.task(queue="load", retry=_retry, result="1m")
def precede(key: str) -> int:
    """Be a call of a race with a step behind it, whose first argument is no key, as it is the value of this one."""
    return len(_be_member(key))


@app.task(queue="aload", retry=_retry, result="1m")
async def follow(_: int, key: str) -> str:
    """Be the step behind a call of a race."""
    return _be_member(key)


@app.task(queue="load", retry=_retry, result="1m")
def win(value: str, key: str, calls: list[str]) -> None:
    """Be the callback of a race: its value is the key of one of its calls."""
    history.note("started", key, delivery().receive_count)
    history.note("link", key, delivery().message_id)
    if value not in calls:
        history.note("misplaced", key)
    history.note("done", key)
    history.note("ended", key)


@app.workflow(queue="load", retry=_retry)
def gathering(run: SyncRun, key: str, calls: list[str], inner: str) -> None:
    """Gather twice: two calls of two queues and a group of two, and then one more call."""
    history.note("started", key, delivery().receive_count)
    nested = group([member.call(calls[1]), amember.call(calls[2])]).then(gather, inner, calls[1:3])
    values = run.gather([amember.call(calls[0]), nested])
    _be_gathered(key, [*values, *run.gather([member.call(calls[3])])], calls, inner)


@app.workflow(queue="aload", retry=_retry)
async def agathering(run: Run, key: str, calls: list[str], inner: str) -> None:
    """Do the same on an event loop."""
    history.note("started", key, delivery().receive_count)
    nested = group([member.call(calls[1]), amember.call(calls[2])]).then(gather, inner, calls[1:3])
    values = await run.gather([amember.call(calls[0]), nested])
    _be_gathered(key, [*values, *await run.gather([member.call(calls[3])])], calls, inner)


def _be_gathered(key: str, values: list[str], calls: list[str], inner: str) -> None:
    if values != [calls[0], inner, calls[3]]:
        history.note("misplaced", key)
    history.note("done", key)
    history.note("ended", key)


def draw() -> str:
    """Return a value that no other call returns."""
    return f"{random.SystemRandom().getrandbits(64):x}"


@app.workflow(queue="load", retry=_retry)
def journey(run: SyncRun, key: str) -> None:
    """Take ten steps, sleep once, wait for a signal once."""
    history.note("started", key, delivery().receive_count)
    for number in range(RUN_STEPS):
        if number == _SLEEPS_BEFORE:
            run.sleep("100ms")
        if number == _WAITS_BEFORE:
            history.note("value", key, GO, run.wait(str, name=GO))
        history.note("value", key, number, run.step(draw))
    history.note("done", key)
    history.note("ended", key)


@app.workflow(queue="aload", retry=_retry)
async def ajourney(run: Run, key: str) -> None:
    """Do the same on an event loop."""
    history.note("started", key, delivery().receive_count)
    for number in range(RUN_STEPS):
        if number == _SLEEPS_BEFORE:
            await run.sleep("100ms")
        if number == _WAITS_BEFORE:
            history.note("value", key, GO, await run.wait(str, name=GO))
        history.note("value", key, number, await run.step(draw))
    history.note("done", key)
    history.note("ended", key)
