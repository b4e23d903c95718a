"""Runs whose steps are recorded with a key that a worker does not hold yet."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from qworker import Keyring, QWorker, Run, SyncRun
from tests.consumer.driving import drain, make_due


def keyring(*names: str) -> Keyring:
    """A keyring whose first key signs and encrypts."""
    return Keyring(
        signing={name: (name * 32).encode() for name in names},
        encryption={name: (name * 32).encode() for name in names},
    )


def payments(app: QWorker, kind: str, seen: list[str]) -> QWorker:
    """Give an app a run that records a step, gathers a call, and gives up if it may."""

    @app.task(name="part", queue="parts", result="1h")
    def part(n: int) -> int:
        return n

    if kind == "sync":

        @app.workflow(name="pay", max_receives=1)
        def pay(run: SyncRun) -> int:
            try:
                one = run.step("one", lambda: 1)
                return one + sum(run.gather([part.call(2)]))
            except Exception as error:
                seen.append(type(error).__name__)
                raise

    else:

        @app.workflow(name="pay", max_receives=1)
        async def apay(run: Run) -> int:
            try:
                one: int = await run.step("one", lambda: 1)
                return one + sum(await run.gather([part.call(2)]))
            except Exception as error:
                seen.append(type(error).__name__)
                raise

    return app


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("where", ["step", "gather"])
def test_a_run_waits_for_a_worker_with_the_key_of_its_steps(
    app: QWorker, kind: str, where: str
) -> None:
    """A worker that was not given the new key yet spends none of its tries, and its function cannot swallow that."""
    seen: list[str] = []
    old = payments(QWorker(app.namespace, url=app.url, keys=keyring("a")), kind, seen)
    new = payments(QWorker(app.namespace, url=app.url, keys=keyring("b", "a")), kind, seen)
    parts = QWorker(app.namespace, url=app.url, keys=keyring("b", "a"))
    payments(parts, kind, seen)
    handle = old.tasks["pay"].start()
    # The first activation is of the worker whose key the other one lacks.
    drain(old if where == "gather" else new, queues=["default"], unknown_wait_ms=0)
    drain(parts, queues=["parts"])

    logs: list[Any]
    with capture_logs() as logs:
        for _ in range(3):
            drain(old, queues=["default"], unknown_wait_ms=0)
            make_due(app)

    assert seen == []
    assert app.queue("default").inspect().dead == 0
    assert [line["dead"] for line in logs if line["event"] == "key_unknown"] == [False] * 3
    drain(new, queues=["default"])
    assert new.handle("default", handle.id).result(0) == 3
    for one in (old, new, parts):
        one.close()
