"""What a worker logs of its start, of messages that were handled, and for whom its handlers log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from qworker import QueueAttributes, QWorker, Release, add_message_fields
from qworker.app.log_context import RECORD_FIELDS, mark_records, message_fields
from tests.consumer.driving import drain, until
from tests.consumer.workers import Lab

APP = """
import logging, structlog

@app.task
def sync(n: int) -> None:
    logging.getLogger("shop").warning("by logging %d", n)
    structlog.get_logger().warning("by structlog", n=n, task="my own")

@app.task
async def coroutine(n: int) -> None:
    await asyncio.sleep(0.01)
    logging.getLogger("shop").warning("from a coroutine")

@app.task(batch=10, max_wait="100ms")
def batch(numbers: list[int]) -> None:
    logging.getLogger("shop").warning("from a batch")
"""


LOGLESS = """
import sys

@app.task
def handle() -> None:
    note("modules", sorted(sys.modules))
"""


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    """What is logged."""
    with capture_logs() as lines:
        yield lines


@pytest.mark.slow
@pytest.mark.cold
@pytest.mark.nightly(
    "telemetry/test_imports.py::test_our_loggers_import_structlog_with_their_first_line"
)
def test_a_child_handles_messages_without_importing_structlog(lab: Lab) -> None:
    """From its start to its first message it logs nothing: the modules that only logs need are not there."""
    lab.app(LOGLESS)
    lab.send("handle")
    with lab.worker():
        until(lambda: lab.noted("modules"))

    ((modules,),) = lab.noted("modules")
    assert "qworker.consumer.child.loop" in modules
    assert not {"structlog", "rich", "click", "prometheus_client"} & set(modules)


@pytest.mark.slow
def test_a_worker_logs_its_tasks_and_handlers_log_their_message(lab: Lab) -> None:
    """Its first line names app, server, queues and tasks; each line of a handler its task and message."""
    lab.app(APP)
    ids = {name: lab.send(name, 7) for name in ("sync", "coroutine", "batch")}
    with lab.worker("--log-messages", "info") as worker:
        until(lambda: len(worker.events("message_handled")) == 3)
        # A child may handle messages before its supervisor is imported.
        until(lambda: worker.events("worker_ready"))
        (started,) = worker.events("worker_started")
    assert started["app"] == "jobs"
    assert started["namespace"] == lab.namespace
    assert started["queues"] == ["default"]
    assert started["tasks"] == ["batch", "coroutine", "sync"]
    assert started["processes"] == 1
    assert started["level"] == "info"
    handled = {event["task"]: event for event in worker.events("message_handled")}
    for name, message_id in ids.items():
        line = handled[name]
        assert (line["message_id"], line["queue"], line["outcome"]) == (
            message_id,
            "default",
            "acked",
        )
        assert line["receive_count"] == 1
        assert line["ran_s"] > 0
        assert line["waited_s"] >= 0
    (by_logging,) = worker.events("by logging 7")
    (by_structlog,) = worker.events("by structlog")
    (from_coroutine,) = worker.events("from a coroutine")
    (from_batch,) = worker.events("from a batch")
    assert (by_logging["task"], by_logging["message_id"]) == ("sync", ids["sync"])
    # What the handler says itself counts.
    assert (by_structlog["task"], by_structlog["message_id"]) == ("my own", ids["sync"])
    assert from_coroutine["message_id"] == ids["coroutine"]
    assert (from_batch["task"], from_batch["messages"]) == ("batch", 1)
    assert "message_id" not in from_batch


@pytest.mark.slow
def test_a_worker_is_ready_after_the_time_that_its_children_took(lab: Lab) -> None:
    """They start before the rest of their supervisor is imported, and that time counts."""
    lab.app("import time\ntime.sleep(0.5)\n@app.task\ndef known() -> None:\n    pass\n")
    with lab.worker() as worker:
        until(lambda: worker.events("worker_ready"))
    (ready,) = worker.events("worker_ready")
    assert ready["after_s"] >= 0.5


@pytest.mark.slow
def test_the_password_of_the_server_is_not_in_the_first_line(lab: Lab) -> None:
    """Nor anywhere else in the log of a start that fails."""
    lab.app("@app.task\ndef known() -> None:\n    pass\n")
    worker = lab.start(environ={"QWORKER_URL": "redis://:hunter2@localhost:1/0"})
    until(lambda: worker.events("worker_started"))
    worker.stop()
    assert "localhost" in worker.events("worker_started")[0]["server"]
    assert "hunter2" not in worker.log.read_text()


@pytest.mark.parametrize(
    ("wanted", "level", "logged"),
    [
        ("off", "debug", 0),
        ("debug", "debug", 3),
        ("debug", "info", 0),
        ("info", "info", 3),
        ("info", "debug", 3),
        ("info", "warning", 0),
    ],
)
def test_handled_messages_are_logged_at_the_level_that_is_asked_for(
    app: QWorker, logs: list[Any], wanted: str, level: str, logged: int
) -> None:
    """A line each, with how it ended; where nothing is written, nothing is made."""

    @app.task
    def ends(how: str) -> None:
        if how == "release":
            raise Release("1m")
        if how == "fail":
            raise ValueError

    for how in ("well", "release", "fail"):
        ends.send(how)

    drain(app, log_messages=wanted, log_level=level)

    lines = [line for line in logs if line["event"] == "message_handled"]
    assert len(lines) == logged
    if logged:
        assert [line["outcome"] for line in lines] == ["acked", "released", "nacked"]
        assert {line["log_level"] for line in lines} == {wanted}


def test_handled_messages_are_logged_beside_a_journal(app: QWorker, logs: list[Any]) -> None:
    """Acks are journalled together; failures among them have their own lines."""

    @app.task
    def ends(how: str) -> None:
        if how == "fail":
            raise ValueError

    app.queue("default").configure(QueueAttributes(journal="all"))
    for how in ("well", "fail", "well"):
        ends.send(how)
    drain(app, log_messages="info", log_level="info")
    lines = [line["outcome"] for line in logs if line["event"] == "message_handled"]
    assert sorted(lines) == ["acked", "acked", "nacked"]


def test_handlers_in_threads_log_for_their_own_messages(app: QWorker) -> None:
    """Each thread has its own message; and outside of handlers there is none."""
    seen: dict[str, Any] = {}

    @app.task
    def note(n: int) -> None:
        seen[str(n)] = message_fields()

    ids = {str(n): note.send(n) for n in range(20)}
    drain(app, concurrency=4)

    assert {n: event["message_id"] for n, event in seen.items()} == ids
    assert message_fields() == {}


@pytest.fixture
def records() -> Iterator[Callable[[], list[logging.LogRecord]]]:
    """Records of `logging`, marked as in a worker."""
    factory = logging.getLogRecordFactory()
    lines: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lines.append  # type: ignore[method-assign]
    log = logging.getLogger("shop.records")
    log.addHandler(handler)
    mark_records()
    yield lambda: lines
    logging.setLogRecordFactory(factory)
    log.removeHandler(handler)


def test_records_carry_the_message_for_any_formatter(
    app: QWorker, records: Callable[[], list[logging.LogRecord]]
) -> None:
    """Also for an app with its own log configuration; an `extra=` of the app is not in the way."""
    log = logging.getLogger("shop.records")

    @app.task
    def note() -> None:
        log.warning("inside", extra={"task": "mine", "queue": "mine"})

    message_id = note.send()
    log.warning("outside")
    drain(app)

    outside, inside = records()
    assert [getattr(outside, name) for name in RECORD_FIELDS] == ["", "", ""]
    assert [getattr(inside, name) for name in RECORD_FIELDS] == ["note", "default", message_id]
    assert logging.Formatter("%(qworker_task)s %(message)s").format(inside) == "note inside"


def test_the_processor_serves_an_own_configuration_of_structlog(app: QWorker) -> None:
    """An app that configures structlog itself puts it among its processors."""
    lines: list[Any] = []

    def keep(_logger: object, _method: str, event: Any) -> Any:
        lines.append(dict(event))
        raise structlog.DropEvent

    log = structlog.wrap_logger(object(), processors=[add_message_fields, keep])

    @app.task
    def note() -> None:
        log.msg("inside")

    message_id = note.send()
    drain(app)

    assert lines == [
        {"event": "inside", "task": "note", "queue": "default", "message_id": message_id}
    ]
