"""The output of the demo on a terminal and into a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from qworker.demo import view
from qworker.demo.account import settle_account
from qworker.demo.outcome import DemoResult
from qworker.demo.progress import DemoProgress, TaskProgress, WorkerProgress
from qworker.demo.results import Index

SNAPSHOT = DemoProgress(
    2.0,
    (TaskProgress("index_file", 1000, 400, 3, 1), TaskProgress("total", 400, 400, 1, 0)),
    (WorkerProgress(4711, 801, "index_file"),),
    599,
)


def outcome(*, lost: bool = False) -> DemoResult:
    return DemoResult(
        account=settle_account(sent={"a", "b"} if lost else {"a"}, handled={"a"}, dead=[]),
        index=Index(1, 2, 3, 4, ()),
        files=1,
        retried=0,
        workers=2,
        workers_killed=0,
        seconds=0.5,
        engine="valkey 9.1.2",
    )


@pytest.fixture
def screen():
    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        width=100,
        color_system="truecolor",
        _environ={"TERM": "xterm-256color"},
    )
    return console, view.TerminalView(console)


def test_progress_is_drawn_with_a_bar_per_task_and_a_line_per_worker(screen):
    console, terminal = screen
    terminal.show(SNAPSHOT)
    terminal.end(None)
    text = console.file.getvalue()
    for words in (
        "index_file",
        "401",
        "of 1,000",
        "3 retries, 1 dead",
        "1 retry",
        "worker 4711",
        "400 messages/s",
    ):
        assert words in text


def test_lines_stay_and_are_not_read_as_markup(screen):
    console, terminal = screen
    terminal.say("[bold]/a/b.py", "bad")
    assert "[bold]/a/b.py" in console.file.getvalue()


@pytest.mark.parametrize(("lost", "style"), [(False, "\x1b[1;32m"), (True, "\x1b[1;31m")])
def test_lost_is_green_at_zero_and_red_above(screen, lost, style):
    console, terminal = screen
    terminal.end(outcome(lost=lost))
    line = next(line for line in console.file.getvalue().splitlines() if "lost" in line)
    assert style in line


def test_into_a_pipe_progress_comes_now_and_then_and_all_is_ascii():
    stream = io.StringIO()
    plain = view.PlainView(stream)
    plain.show(SNAPSHOT)
    plain.show(SNAPSHOT)
    plain.say("straße", "bad")
    plain.end(outcome())
    lines = stream.getvalue().splitlines()
    assert lines[0] == "  2.0 s  801 of 1,400 messages done, 4 retries, 1 dead"
    assert lines[1] == "stra\\xdfe"
    assert "  lost                    0   sent, and neither handled nor dead" in lines


@pytest.mark.parametrize(
    ("environment", "kind"),
    [
        ({"TERM": "xterm", "TTY_COMPATIBLE": "1"}, view.TerminalView),
        ({"TERM": "dumb"}, view.PlainView),
    ],
)
def test_a_terminal_that_cannot_draw_gets_plain_lines(monkeypatch, environment, kind):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert isinstance(view.choose_view(stderr=False), kind)


def test_the_exit_code_is_1_if_a_message_is_lost():
    assert outcome().exit_code == 0
    assert outcome(lost=True).exit_code == 1


def test_a_run_too_short_to_kill_a_worker_says_so():
    words = {name: text for name, _, text in outcome().rows()}
    assert words["redelivered"] == "too few messages to kill a worker in the middle of one"


def test_lines_are_wrapped_between_words() -> None:
    """A terminal of 30 columns breaks no word, and a path stays whole."""
    written = io.StringIO()
    console = Console(file=written, width=30, force_terminal=True, color_system=None)
    path = "/a/long/path/to/a/directory/of/sources"
    view.TerminalView(console).say(f"qworker demo: index the files of Python in {path}")
    assert [line.rstrip() for line in written.getvalue().splitlines()] == [
        "qworker demo: index the files",
        "of Python in",
        path,
    ]


def test_one_retry_is_not_called_retries():
    stream = io.StringIO()
    one = DemoProgress(2.0, (TaskProgress("total", 10, 4, 1, 0),), (), 6)
    view.PlainView(stream).show(one)
    assert stream.getvalue() == "  2.0 s  4 of 10 messages done, 1 retry, 0 dead\n"
