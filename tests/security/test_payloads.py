"""What stands in a message: it names a registered task or nothing, and never appears in a log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from qworker import QWorker, Retry
from qworker.telemetry.logs import configure_logs
from qworker.testing import drain


@pytest.fixture
def app(store_url: str, namespace: str) -> Iterator[QWorker]:
    app = QWorker(namespace, url=store_url)

    @app.task(max_receives=1)
    def known(text: str) -> None: ...

    yield app
    app.close()


@pytest.mark.bad_input("data found: unknown task")
@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.eval",
        "subprocess.Popen",
        "__main__.known",
        "known.__call__",
        "../known",
    ],
)
def test_a_message_names_registered_tasks_only(app: QWorker, name: str, tmp_path: Path) -> None:
    """A path to a function is an unknown name: dead with that reason, and nothing was run."""
    trap = tmp_path / "trap"
    app.queue("default").send({"task": name, "args": [f"touch {trap}"]}, max_receives=1)
    done = drain(app)
    assert [dead_letter.reason for dead_letter in done.dead] == ["unknown_task"]
    assert not trap.exists()


@pytest.mark.bad_input("data found: body that is none")
@pytest.mark.parametrize(
    "body", [b"cos\nsystem\n(S'touch {}'\ntR.", b"\x80\x04\x95\x1c\x00\x00\x00", b"!!python/object/apply:os.system [x]"]
)  # fmt: skip
def test_a_body_that_would_run_elsewhere_is_bytes(
    app: QWorker, body: bytes, tmp_path: Path
) -> None:
    """A pickle, a YAML with a constructor: no JSON, so no call."""
    trap = tmp_path / "trap"
    app.queue("default").send(body.replace(b"{}", str(trap).encode()))
    done = drain(app)
    assert [dead_letter.reason for dead_letter in done.dead] == ["bad_arguments"]
    assert not trap.exists()


#: Looks like a line of the log, moves a cursor, rings a bell, turns the direction of text.
NASTY = 'body-marker\n{"level": "info", "event": "forged"}\r\x1b[2J\x1b]0;x\x07\u202e\x00'


@pytest.mark.parametrize("style", ["json", "text"])
@pytest.mark.parametrize("level", ["info", "debug"])
def test_payloads_are_not_logged(
    store_url: str, namespace: str, style: str, level: str, tmp_path: Path
) -> None:
    """Sent, received, run, retried, buried, refused: no line has a body or an argument."""
    app = QWorker(namespace, url=store_url)

    @app.task(max_receives=2, retry=Retry.none())
    def fail(text: str) -> None:
        raise ValueError("words of the handler alone")

    @app.task
    def number(value: int) -> None: ...

    path = tmp_path / "log"
    with path.open("wb") as file:
        configure_logs(style, level, fd=file.fileno())
        queue = app.queue("default")
        fail.send(NASTY)
        queue.send({"task": "number", "args": [NASTY]})
        queue.send({"task": "number", "args": [], "kwargs": {"value": NASTY}})
        queue.send({"nothing": NASTY})
        queue.send(NASTY.encode())
        drain(app, errors="collect")
    structlog.reset_defaults()
    app.close()
    written = path.read_bytes()
    assert b"message_failed" in written
    assert b"message_rejected" in written
    assert b"body-marker" not in written
    assert b"forged" not in written


@pytest.mark.parametrize("style", ["json", "text"])
def test_what_names_of_others_are_logged_is_escaped(
    store_url: str, namespace: str, style: str, tmp_path: Path
) -> None:
    """A task's name out of a message, and the words of an exception: one event each, that moves nothing."""
    app = QWorker(namespace, url=store_url)

    @app.task(max_receives=1)
    def fail() -> None:
        raise ValueError(NASTY)

    path = tmp_path / "log"
    with path.open("wb") as file:
        configure_logs(style, "info", fd=file.fileno())
        fail.send()
        app.queue("default").send({"task": NASTY[:60], "args": []}, max_receives=1)
        drain(app, errors="collect")
    structlog.reset_defaults()
    app.close()
    written = path.read_bytes().decode()
    assert not any(name in written for name in "\x1b\x07\r\x00\u202e")
    if style == "json":
        events = [json.loads(line)["event"] for line in written.splitlines()]
        assert "forged" not in events
        assert {"message_failed", "task_unknown"} <= set(events)
