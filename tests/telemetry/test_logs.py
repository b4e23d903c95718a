"""Logs: the form of a line, what it never contains, and that no log stops the work."""

from __future__ import annotations

import json
import logging
import os
import pty
import socket
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import structlog

from qworker.errors import InvalidOptionError
from qworker.telemetry.logger import Logger, logger
from qworker.telemetry.logs import configure_logs
from qworker.telemetry.throttle import LogThrottle


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Restore the configuration of logs after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """Configure logs to a file; calls return the lines since the last call."""
    path = tmp_path / "log"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    configure_logs("json", "info", fd=fd)

    def read(style: str | None = None, level: str = "info") -> list[str]:
        text = path.read_text()
        os.truncate(path, 0)
        if style is not None:
            configure_logs(style, level, fd=fd)
        return text.splitlines()

    yield read
    os.close(fd)


def test_json_line(lines: Callable[..., list[str]]) -> None:
    """A line is one JSON object: time, level and event first, then the values."""
    structlog.get_logger().info("message_acked", queue="emails", count=3)
    (line,) = lines()
    document = json.loads(line)
    assert list(document) == ["timestamp", "level", "event", "queue", "count"]
    assert document.pop("timestamp").endswith("Z")
    assert document == {"level": "info", "event": "message_acked", "queue": "emails", "count": 3}


def test_levels(lines: Callable[..., list[str]]) -> None:
    """Lines below the level are not written."""
    structlog.get_logger().debug("tick_done")
    assert lines("json", level="debug") == []
    structlog.get_logger().debug("tick_done")
    assert len(lines("json", level="error")) == 1
    structlog.get_logger().warning("tick_late")
    assert lines() == []


@pytest.mark.parametrize("style", ["json", "text"])
def test_control_characters_are_escaped(lines: Callable[..., list[str]], style: str) -> None:
    """No value, at any depth, begins a line, moves the cursor or changes the direction of text."""
    lines(style)
    nasty = "a\nb\r\x1b[31m\x07\x9b\u2028\u202e\x00c"

    class Shown:
        def __repr__(self) -> str:
            return nasty

    structlog.get_logger().info("thing_seen", text=nasty, shown=Shown(), listed=[nasty])
    logging.getLogger("lib").warning("seen %s", nasty)
    written = lines()
    assert len(written) == 2
    for char in "\r\x1b\x07\x9b\u2028\u202e\x00":
        assert char not in "".join(written)


def test_a_stack_has_its_own_lines(lines: Callable[..., list[str]]) -> None:
    """The stack of a dead process is shown in lines, with control characters escaped."""
    lines("text")
    structlog.get_logger().warning("child_ended", stack="Fatal\n  File \x1b[2Jx", word="a\nb")
    first, *stack = lines()
    assert r"a\x0ab" in first
    assert stack == ["Fatal", r"  File \x1b[2Jx"]


@pytest.mark.parametrize("style", ["json", "text"])
def test_bytes_are_logged_as_their_length(lines: Callable[..., list[str]], style: str) -> None:
    """Bodies are bytes, and are not shown."""
    lines(style)
    structlog.get_logger().info("body_read", body=b"secret", view=memoryview(b"secret"))
    (line,) = lines()
    assert "secret" not in line
    assert line.count("<6 bytes>") == 2


def test_nested_bytes_are_not_shown_in_json(lines: Callable[..., list[str]]) -> None:
    """Nested bytes are not shown, either."""
    structlog.get_logger().info("bodies_read", bodies=[b"secret"])
    (line,) = lines()
    assert json.loads(line)["bodies"] == ["<6 bytes>"]


@pytest.mark.parametrize("style", ["json", "text"])
def test_tracebacks_show_no_variables(lines: Callable[..., list[str]], style: str) -> None:
    """An exception is logged with its lines, never with the values of variables."""
    lines(style)
    body = "se" + "cret"
    try:
        raise ValueError(f"of {len(body)}\x1b")
    except ValueError:
        structlog.get_logger().exception("handler_failed")
    text = "\n".join(lines())
    assert "test_tracebacks_show_no_variables" in text
    assert "ValueError: of 6" in text
    assert "secret" not in text
    assert "\x1b" not in text


def test_logging_of_libraries_goes_the_same_way(lines: Callable[..., list[str]]) -> None:
    """Records of the standard library are JSON as well; one that cannot be written is reported."""
    root = logging.getLogger()
    # Without pytest's own handler, which raises.
    root.handlers[:] = [
        handler for handler in root.handlers if type(handler).__name__ == "RecordHandler"
    ]
    logging.getLogger("lib").warning("slow: %d s", 3)
    logging.getLogger("lib").info("quiet")
    logging.getLogger("lib").error("%d", "no number")
    first, second, third = [json.loads(line) for line in lines()]
    assert (first["event"], first["level"]) == ("slow: 3 s", "warning")
    assert second["event"] == "quiet"
    assert third == {"level": "error", "event": "log_record_unreadable"}
    configure_logs("json", "info", fd=2)
    assert len(root.handlers) == 1


@pytest.mark.parametrize("style", ["json", "text"])
def test_values_that_json_does_not_have_are_written(
    lines: Callable[..., list[str]], style: str
) -> None:
    """Lone surrogates, NaN and sets are written as well."""
    lines(style)
    structlog.get_logger().info("value_seen", text="\udc80", number=float("nan"), several={1})
    assert len(lines()) == 1


@pytest.mark.bad_input("surroundings: closed stdout, full disk under the log")
def test_a_log_that_cannot_be_written_stops_nothing() -> None:
    """A closed pipe, a full disk and a closed descriptor cost only the line."""
    reading, writing = os.pipe()
    configure_logs("json", fd=writing)
    os.close(reading)
    structlog.get_logger().info("thing_done")
    os.close(writing)
    structlog.get_logger().info("thing_done")
    if Path("/dev/full").exists():
        full = os.open("/dev/full", os.O_WRONLY)
        configure_logs("json", fd=full)
        structlog.get_logger().info("thing_done")
        logging.getLogger("lib").warning("thing done")
        os.close(full)


def test_a_full_pipe_drops_lines_instead_of_waiting() -> None:
    """With a non-blocking descriptor, logging does not wait for a slow reader."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    configure_logs("json", fd=writing)
    for _ in range(2000):
        structlog.get_logger().info("thing_done", padding="x" * 100)
    os.close(writing)
    os.close(reading)


@pytest.mark.bad_input("surroundings: stdout that nothing reads")
@pytest.mark.parametrize("length", [100, 5000], ids=["short lines", "lines over PIPE_BUF"])
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_reader_that_stands_still_stops_nothing(
    kind: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines wait for it once, and are dropped then; when it reads on, a line says how many it has missed."""
    monkeypatch.setattr("qworker.telemetry.handler._PATIENCE_MS", 10)
    reading, writing = os.pipe() if kind == "pipe" else sockets()
    configure_logs("json", fd=writing)
    os.set_blocking(reading, False)

    for number in range(400_000 // length):
        structlog.get_logger().info("thing_done", number=number, padding="x" * length)
    text = read_all(reading)
    structlog.get_logger().info("all_done")
    text += read_all(reading)

    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    assert [line["number"] for line in lines if "number" in line] == [*range(len(lines) - 2)]
    assert [line["event"] for line in lines[-2:]] == ["log_lines_dropped", "all_done"]
    os.close(writing)
    os.close(reading)


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_stopped_terminal_stops_nothing(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-S lines are dropped; after Ctrl-Q the terminal shows how many, in the form of the others."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("qworker.telemetry.handler._PATIENCE_MS", 10)
    reading, writing = pty.openpty()
    configure_logs(form, fd=writing)
    termios.tcflow(writing, termios.TCOOFF)
    for _ in range(3):
        structlog.get_logger().info("thing_done")
    termios.tcflow(writing, termios.TCOON)
    structlog.get_logger().info("all_done")

    notice, last = (line for line in os.read(reading, 4096).decode().splitlines() if line)
    if form == "json":
        assert json.loads(notice).items() >= {"event": "log_lines_dropped", "lines": 3}.items()
        assert [*json.loads(notice)][:3] == [*json.loads(last)] == ["timestamp", "level", "event"]
    else:
        assert notice[8:] == " [warning  ] log_lines_dropped        lines=3"
        assert last[8:].split() == ["[info", "]", "all_done"]
    os.close(writing)
    os.close(reading)


def sockets() -> tuple[int, int]:
    """A pair of connected sockets, as journald and container engines give to a process."""
    one, other = socket.socketpair()
    return one.detach(), other.detach()


def read_all(fd: int) -> str:
    """Read what is there."""
    data = b""
    with suppress(BlockingIOError):
        while piece := os.read(fd, 65_536):
            data += piece
    return data.decode()


@pytest.mark.parametrize(
    ("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)]
)
def test_a_terminal_gets_text(
    environ: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """auto is text on a terminal, coloured unless NO_COLOR is set."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    reading, writing = pty.openpty()
    configure_logs("auto", fd=writing)
    structlog.get_logger().info("thing_done", queue="a")
    line = os.read(reading, 4096).decode()
    os.close(writing)
    os.close(reading)
    assert not line.startswith("{")
    assert "thing_done" in line
    assert ("\x1b[" in line) is coloured


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"format": "xml"},
            "log_format: 'xml' is not a format; it must be one of auto, text, json",
        ),
        (
            {"level": "loud"},
            "log_level: 'loud' is not a level; it must be one of debug, info, warning, error",
        ),
    ],
)
def test_unknown_options_are_refused(options: dict[str, Any], text: str) -> None:
    """The error names the unknown format or level."""
    with pytest.raises(InvalidOptionError) as caught:
        configure_logs(**options)
    assert str(caught.value) == text


def test_throttle_admits_one_event_per_minute() -> None:
    """The first event of a key passes, and the next one after a minute, with the number of suppressed ones."""
    now = [0.0]
    throttle = LogThrottle(clock=lambda: now[0])
    assert [throttle.admit("a"), throttle.admit("a"), throttle.admit("b"), throttle.admit("a")] == [
        0,
        None,
        0,
        None,
    ]
    now[0] = 59.9
    assert throttle.admit("a") is None
    now[0] = 60.0
    assert throttle.admit("a") == 3
    assert throttle.admit("a") is None


def test_throttle_is_bounded() -> None:
    """With any number of keys, memory is bounded."""
    throttle = LogThrottle(clock=lambda: 0.0)
    for number in range(30_000):
        assert throttle.admit(str(number)) == 0
    assert len(throttle._last) <= 10_001


def test_names_are_a_list_for_people_and_an_array_for_machines(
    lines: Callable[..., list[str]],
) -> None:
    """People see names without brackets and quotes; control characters are escaped in both forms."""
    structlog.get_logger().info("schedules_registered", added=["a", "b\x1b"])
    (line,) = lines("text")
    assert json.loads(line)["added"] == ["a", "b\x1b"]
    structlog.get_logger().info(
        "schedules_registered", added=("a", "b\x1b"), counts=[1, 2], none=[]
    )
    (line,) = lines()
    assert r"added='a, b\\x1b'" in line
    assert "counts='[1, 2]'" in line
    assert "none=[]" in line


def test_debug_lines_of_a_process_that_has_configured_nothing_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """structlog prints every level to stdout then, which may be the output of the user's program."""
    monkeypatch.setattr(Logger, "ours", False)
    structlog.reset_defaults()
    log = logger("web")
    log.debug("not_heard")
    log.warning("not_stored")
    structlog.configure(processors=[structlog.processors.JSONRenderer()])
    log.debug("heard")
    shown = capsys.readouterr()
    assert "not_heard" not in shown.out
    assert "not_stored" in shown.out
    assert '{"event": "heard"}' in shown.out
    assert shown.err == ""
