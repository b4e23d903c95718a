"""How a child ended, whose fault it was, and what it said last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from qworker.consumer.board.board import Board
from qworker.consumer.board.crash import cause_of, crash_stack, named, slot_of
from qworker.consumer.manifest import ManifestTask
from qworker.consumer.supervisor.leases.postmortem import death_of, ending_of

TASKS = [
    ManifestTask("plain", "q", False, None, 0, 0.0),
    ManifestTask("strict", "q", False, 3, 0, 0.0),
    ManifestTask("batch", "q", False, None, 10, 0.0),
]
PLAIN, STRICT, BATCH = range(3)

WORDS = """Fatal Python error: Segmentation fault

Stack (most recent call first):
  File "/app/jobs.py", line 12 in resize
  File "/lib/qworker/consumer/child/handlers/runner.py", line 177 in call
  File "/lib/qworker/consumer/child/handlers/threads.py", line 255 in _run_calls
  File "/lib/qworker/consumer/child/handlers/threads.py", line 112 in qworker_slot_{slot}
  File "/lib/python3.11/threading.py", line 982 in run

Extension modules: hiredis.hiredis, msgspec._core (total: 2)
"""


@pytest.fixture
def board() -> Iterator[Board]:
    """A board for four handlers."""
    board = Board.create(4)
    yield board
    board.close()


def say(board: Board, slot: int) -> None:
    """Leave last words, as a crash in a slot would."""
    os.pwrite(board.descriptor, WORDS.format(slot=slot).encode(), board.size)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-signal.SIGSEGV, "was ended by signal 11 (SIGSEGV)"),
        (-signal.SIGKILL, "was ended by signal 9 (SIGKILL)"),
        (-99, "was ended by signal 99 (unknown)"),
    ],
)
def test_an_exit_code_in_words(code: int, words: str) -> None:
    """A code or a signal with its name."""
    assert ending_of(code) == words


def test_who_ran_alone_is_to_blame(board: Board) -> None:
    """With one running handler there is no doubt, with several and no word there is."""
    board.running.begin(1, 7, 3, STRICT, 1.0, 0.0)
    death = death_of(board, TASKS, -9)
    assert death.accused == {(7, 3): 3}
    assert death.error[1] == (
        "the process was ended by signal 9 (SIGKILL) while the message ran; "
        "the kernel does that when memory runs out (see dmesg)"
    )
    board.running.begin(2, 7, 4, PLAIN, 1.0, 0.0)
    assert death_of(board, TASKS, -9).accused == {}


def test_last_words_name_the_guilty_one_among_many(board: Board) -> None:
    """The slot in whose frame the crash happened names the message, and its stack goes to the dead letter."""
    for slot in range(4):
        board.running.begin(slot, 1, slot * 10, PLAIN, 1.0, 0.0)
    say(board, 2)

    death = death_of(board, TASKS, -signal.SIGSEGV)

    assert death.accused == {(1, 20): None}
    assert death.error[0] == "WorkerDiedError"
    assert death.error[1].split("\n") == [
        "Fatal Python error: Segmentation fault in resize (jobs.py:12): "
        "the process was ended by signal 11 (SIGSEGV) while the message ran",
        "Fatal Python error: Segmentation fault",
        "",
        "Stack (most recent call first):",
        '  File "/app/jobs.py", line 12 in resize',
    ]
    assert "Extension modules" in death.stack, "the log has all of it"


def test_invalid_slot_numbers_blame_no_message(board: Board) -> None:
    """A crash outside of handlers, or a stack too deep to show its slot, leaves the blame open."""
    for slot in range(2):
        board.running.begin(slot, 1, slot, PLAIN, 1.0, 0.0)
    os.pwrite(board.descriptor, b"Fatal Python error: Aborted\n\n<no Python frame>", board.size)
    death = death_of(board, TASKS, -signal.SIGABRT)
    assert (death.accused, "Aborted" in death.stack) == ({}, True)


def test_handlers_past_their_limit_are_to_blame(board: Board) -> None:
    """A child that was ended for a time limit accuses just those who were over it."""
    board.running.begin(0, 1, 0, STRICT, 1.0, 2.0)
    board.running.begin(1, 1, 1, PLAIN, 1.0, 0.0)
    death = death_of(board, TASKS, -9, overdue=board.running.views()[:1])
    assert (death.accused, death.error[0]) == ({(1, 0): 3}, "TimeLimitError")


def test_no_message_of_a_batch_is_singled_out(board: Board) -> None:
    """One slot stands for many messages of a batch handler: which of them it was is not known."""
    board.running.begin(0, 1, 0, BATCH, 1.0, 2.0)
    assert death_of(board, TASKS, -11).accused == {}
    assert death_of(board, TASKS, -9, overdue=board.running.views()).accused == {}


@pytest.mark.parametrize(
    ("words", "slot"),
    [
        ("", None),
        (WORDS.format(slot=17), 17),
        (WORDS.format(slot=17).replace("Stack", "Current thread 0x00007f (most recent"), 17),
        ("Thread 0x01 (most recent call first):\n  File x, line 1 in qworker_slot_3\n", None),
        (
            "Current thread 0x02 (most recent call first):\n  File x, line 1 in other\n"
            "Thread 0x01 (most recent call first):\n  File x, line 1 in qworker_slot_3\n",
            None,
        ),
        ('  File "/a b/in qworker_slot_9/x.py", line 1 in f\n', None),
    ],
)
def test_only_the_stack_of_the_thread_that_crashed_counts(words: str, slot: int | None) -> None:
    """What other threads were at is not evidence, nor is a file that happens to be called so."""
    assert slot_of(words) == slot


def dump(*frames: str) -> str:
    """What Python writes of a crash in these frames, the innermost first."""
    lines = [f'  File "{file}", line 7 in {name}' for file, _, name in map(_parted, frames)]
    ours = '  File "/venv/lib/python3.11/site-packages/qworker/consumer/child/handlers/runner.py", line 1 in run'
    head = ["Fatal Python error: Aborted", "", "Stack (most recent call first):"]
    return "\n".join([*head, *lines, ours, "", "Extension modules: a, b (total: 2)"])


def _parted(frame: str) -> tuple[str, str, str]:
    return frame.rpartition(":")


@pytest.mark.parametrize(
    ("frames", "where"),
    [
        (
            ["/usr/lib/python3.11/ctypes/__init__.py:string_at", "/app/jobs.py:resize"],
            "resize (jobs.py:7)",
        ),
        (
            ["/venv/lib/python3.11/site-packages/PIL/i.py:load", "/app/jobs.py:resize"],
            "resize (jobs.py:7)",
        ),
        (["<frozen runpy>:run", "/app/jobs.py:deep", "/app/jobs.py:resize"], "deep (jobs.py:7)"),
        (
            [
                "/v/lib/python3.13t/site-packages/PIL/i.py:load",
                "/v/lib/python3.13t/site-packages/shop/jobs.py:resize",
            ],
            "resize (jobs.py:7)",
        ),
        (["/usr/lib/python3/dist-packages/shop/jobs.py:resize"], "resize (jobs.py:7)"),
        (["/srv/lib/python3-apps/jobs.py:resize"], "resize (jobs.py:7)"),
    ],
    ids=[
        "in Python's library",
        "in a library",
        "deeper in the app",
        "installed app",
        "Debian",
        "odd path",
    ],
)
def test_a_crash_is_reported_with_the_innermost_frame_of_the_app(
    frames: list[str], where: str
) -> None:
    """Not that of a library it called; an app that is installed like a library is reported by its handler."""
    assert cause_of(dump(*frames)) == f"Fatal Python error: Aborted in {where}"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("", ""),
        ("Fatal Python error: Aborted\n\n<no Python frame>", "Fatal Python error: Aborted"),
        ("rubbish", "rubbish"),
    ],
)
def test_a_crash_without_frames_is_reported_by_its_first_line(words: str, cause: str) -> None:
    """There may be no Python frame, and no words."""
    assert cause_of(words) == cause


def test_a_named_copy_behaves_like_its_original() -> None:
    """Only the name in a traceback differs."""
    bonus = 5

    def add(a: int, *, b: int = 2) -> int:
        return a + b + bonus

    copy = named(add, 12)
    assert (copy(1), copy(1, b=10)) == (8, 16)
    assert copy.__code__.co_name == "qworker_slot_12"


@pytest.mark.parametrize(
    "is_async",
    [pytest.param(False, marks=pytest.mark.nightly("test_a_real_crash_says_its_slot")), True],
)
@pytest.mark.slow
def test_a_real_crash_says_its_slot(is_async: bool) -> None:
    """Python's own words about a segmentation fault name the slot, in a thread and in a coroutine."""
    program = f"""
import asyncio, ctypes, sys, threading
from qworker.consumer.board.board import Board
from qworker.consumer.board.crash import catch_crashes, named

def crash():
    ctypes.string_at(0)

def work():
    crash()

async def awork():
    await asyncio.sleep(0)
    crash()

catch_crashes(Board(int(sys.argv[1]), 4))
if {is_async}:
    async def main():
        tasks = [asyncio.create_task(named(asyncio.sleep, 1)(60)), asyncio.create_task(named(awork, 3)())]
        await asyncio.gather(*tasks)
    asyncio.run(main())
else:
    threading.Thread(target=named(work, 3)).start()
"""
    board = Board.create(4)
    try:
        process = subprocess.run(
            [sys.executable, "-c", program, str(board.descriptor)],
            pass_fds=[board.descriptor],
            stderr=subprocess.DEVNULL,
            check=False,
        )
        assert process.returncode == -signal.SIGSEGV
        words = crash_stack(board)
        assert slot_of(words) == 3
        assert cause_of(words) == "Fatal Python error: Segmentation fault in crash (<string>:7)"
    finally:
        board.close()
