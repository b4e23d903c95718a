"""Logs: what a line looks like, what never stands in one, and that no log stops the work."""

from __future__ import annotations

import json
import logging
import os
import pty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from qworker.errors import InvalidOptionError
from qworker.telemetry.logs import Seldom, configure_logs


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Take back what the test configured."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """Configure logs to a file and tell its lines; called again, those that came since."""
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
    found = json.loads(line)
    assert list(found) == ["timestamp", "level", "event", "queue", "count"]
    assert found.pop("timestamp").endswith("Z")
    assert found == {"level": "info", "event": "message_acked", "queue": "emails", "count": 3}


def test_levels(lines: Callable[..., list[str]]) -> None:
    """What is below the level is not written."""
    structlog.get_logger().debug("tick_done")
    assert lines("json", level="debug") == []
    structlog.get_logger().debug("tick_done")
    assert len(lines("json", level="error")) == 1
    structlog.get_logger().warning("tick_late")
    assert lines() == []


@pytest.mark.parametrize("style", ["json", "text"])
def test_control_characters_are_escaped(lines: Callable[..., list[str]], style: str) -> None:
    """No value begins a line, moves a cursor or turns the text around, wherever it stands."""
    lines(style)
    nasty = "a\nb\r\x1b[31m\x07\x9b\u2028\u202e\x00c"

    class Shown:
        def __repr__(self) -> str:
            return nasty

    structlog.get_logger().info("thing_seen", text=nasty, shown=Shown(), listed=[nasty])
    logging.getLogger("lib").warning("seen %s", nasty)
    written = lines()
    assert len(written) == 2
    for letter in "\r\x1b\x07\x9b\u2028\u202e\x00":
        assert letter not in "".join(written)


def test_a_stack_stands_in_lines_of_its_own(lines: Callable[..., list[str]]) -> None:
    """What a dead process left behind is read line by line, and steers no terminal all the same."""
    lines("text")
    structlog.get_logger().warning("child_ended", stack="Fatal\n  File \x1b[2Jx", word="a\nb")
    first, *stack = lines()
    assert r"a\x0ab" in first
    assert stack == ["Fatal", r"  File \x1b[2Jx"]


@pytest.mark.parametrize("style", ["json", "text"])
def test_bytes_are_told_by_their_length(lines: Callable[..., list[str]], style: str) -> None:
    """Bodies are bytes, and are not shown."""
    lines(style)
    structlog.get_logger().info("body_read", body=b"secret", view=memoryview(b"secret"))
    (line,) = lines()
    assert "secret" not in line
    assert line.count("<6 bytes>") == 2


def test_nested_bytes_are_not_shown_in_json(lines: Callable[..., list[str]]) -> None:
    """Nor where they stand deeper."""
    structlog.get_logger().info("bodies_read", bodies=[b"secret"])
    (line,) = lines()
    assert json.loads(line)["bodies"] == ["<6 bytes>"]


@pytest.mark.parametrize("style", ["json", "text"])
def test_tracebacks_show_no_variables(lines: Callable[..., list[str]], style: str) -> None:
    """An exception is told with its places, never with the values of variables."""
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
    """What the standard library is given is JSON as well; a record that cannot be written is told."""
    root = logging.getLogger()
    # Without pytest's own handler, which raises.
    root.handlers[:] = [each for each in root.handlers if type(each).__name__ == "_Handler"]
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
def test_what_cannot_be_encoded_is_written_all_the_same(
    lines: Callable[..., list[str]], style: str
) -> None:
    """Lone surrogates, NaN and sets are values like others."""
    lines(style)
    structlog.get_logger().info("value_seen", text="\udc80", number=float("nan"), several={1})
    assert len(lines()) == 1


def test_a_reader_that_went_away_stops_nothing() -> None:
    """A closed pipe, a full disk and a closed descriptor cost the line alone."""
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
    """Where the descriptor does not block, nobody waits for a slow reader."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    configure_logs("json", fd=writing)
    for _ in range(2000):
        structlog.get_logger().info("thing_done", padding="x" * 100)
    os.close(writing)
    os.close(reading)


@pytest.mark.parametrize(
    ("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)]
)
def test_a_terminal_gets_text(
    environ: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """auto is text on a terminal, in colours unless NO_COLOR is set."""
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
            "log_format: 'xml' is no format; it must be one of auto, text, json",
        ),
        (
            {"level": "loud"},
            "log_level: 'loud' is no level; it must be one of debug, info, warning, error",
        ),
    ],
)
def test_unknown_options_are_refused(options: dict[str, Any], text: str) -> None:
    """A format or level that is none is named."""
    with pytest.raises(InvalidOptionError) as caught:
        configure_logs(**options)
    assert str(caught.value) == text


def test_seldom_lets_one_through_per_minute() -> None:
    """Per key the first is let through, and the next one after a minute says how many were held back."""
    now = [0.0]
    seldom = Seldom(clock=lambda: now[0])
    assert [seldom.more("a"), seldom.more("a"), seldom.more("b"), seldom.more("a")] == [
        0,
        None,
        0,
        None,
    ]
    now[0] = 59.9
    assert seldom.more("a") is None
    now[0] = 60.0
    assert seldom.more("a") == 3
    assert seldom.more("a") is None


def test_seldom_is_bounded() -> None:
    """However many keys there are, few are remembered."""
    seldom = Seldom(clock=lambda: 0.0)
    for number in range(30_000):
        assert seldom.more(str(number)) == 0
    assert len(seldom._last) <= 10_001


def test_names_are_a_list_for_people_and_an_array_for_machines(
    lines: Callable[..., list[str]],
) -> None:
    """Nobody reads brackets and quotes; a name with a control character is escaped in either."""
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
