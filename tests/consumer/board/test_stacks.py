"""Where running handlers are: told by their worker, whatever holds them up."""

from __future__ import annotations

import json

import pytest

from qworker.consumer.board.stacks import stack_of
from tests.consumer.driving import until
from tests.consumer.supervisor.test_control import name_of_worker, operate
from tests.consumer.workers import Lab
from tests.tables import each

DUMP = """\
Thread 0x1 (most recent call first):
  File "/app/jobs.py", line 7 in inner
  File "/app/jobs.py", line 9 in handle
  File "/site/qworker/consumer/child/handlers/runner.py", line 3 in run
  File "/site/qworker/consumer/child/handlers/threads.py", line 5 in qworker_slot_1

Thread 0x2 (most recent call first):
  File "/app/jobs.py", line 8 in other
  File "/site/qworker/consumer/child/handlers/event_loop.py", line 5 in qworker_slot_11

Coroutine of slot 4 (most recent call first):
  File "/lib/asyncio/tasks.py", line 1 in sleep
  File "/app/jobs.py", line 2 in wait
  File "/site/qworker/consumer/child/handlers/runner.py", line 3 in arun
"""


@each(
    "slot, frames",
    [
        (1, ['"/app/jobs.py", line 7 in inner', '"/app/jobs.py", line 9 in handle']),
        (11, ['"/app/jobs.py", line 8 in other']),
        (4, ['"/lib/asyncio/tasks.py", line 1 in sleep', '"/app/jobs.py", line 2 in wait']),
        (7, []),
    ],
)
def test_a_stack_is_that_of_its_slot(slot: int, frames: list[str]) -> None:
    """Only frames of the slot's own handler are shown, and none of ours."""
    shown = [line.removeprefix("  File ") for line in stack_of(DUMP, slot).splitlines()]
    assert shown == frames


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "flags"),
    [
        pytest.param(
            "def handle(n):\n    deeper(n)\ndef deeper(n):\n    time.sleep(1000)",
            (),
            marks=pytest.mark.nightly("test_a_worker_shows_where_its_handlers_are"),
            id="inline",
        ),
        pytest.param(
            "def handle(n):\n    deeper(n)\ndef deeper(n):\n    time.sleep(1000)",
            ("--concurrency", "3"),
            marks=pytest.mark.nightly("test_a_worker_shows_where_its_handlers_are"),
            id="threads",
        ),
        pytest.param(
            "async def handle(n):\n    await deeper(n)\nasync def deeper(n):\n    await asyncio.sleep(1000)",
            (),
            id="async",
        ),
        pytest.param(
            "def handle(n):\n    deeper(n)\ndef deeper(n):\n    ctypes.PyDLL(None).sleep(1000)",
            (),
            id="gil",
        ),
    ],
)
def test_a_worker_shows_where_its_handlers_are(
    lab: Lab, source: str, flags: tuple[str, ...]
) -> None:
    """Sync and async handlers, and one that lets no other thread run, are shown with their frames; they continue."""
    first, _, rest = source.partition(
        "\ndef deeper" if "async" not in source else "\nasync def deeper"
    )
    deeper = ("def deeper" if "async" not in source else "async def deeper") + rest
    lab.app(f"{deeper}\n@app.task\n{first.replace('    ', '    note(chr(98)); ', 1)}\n")
    lab.send("handle", 1)
    with lab.worker("--grace", "0s", *flags):
        until(lambda: lab.notes("b"))
        name = name_of_worker(lab)
        asked = operate(lab, "worker", "stack", name, "--json")
        assert asked.exit_code == 0, asked.output
        (handler,) = json.loads(asked.stdout)["workers"][name]
        assert handler["task"] == "handle"
        assert " in deeper\n" in handler["stack"]
        assert handler["stack"].splitlines()[-1].endswith(" in handle")
        shown = operate(lab, "worker", "stack")
        assert f"{name}  pid {handler['pid']}  handle  {handler['id']}" in shown.stdout
        assert "in deeper" in shown.stdout
    assert len(lab.notes("b")) == 1
