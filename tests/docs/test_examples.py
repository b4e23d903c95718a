"""What the README and the guides show, run as they show it."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qworker import QWorker
from qworker.testing import advance, bind, drain
from tests.docs.blocks import ROOT, blocks
from tests.programs import program

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent


@pytest.fixture
def environment(tmp_path, qworker_store):
    """A shell's environment: our commands, a server of the session, and its own directory."""
    return {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "QWORKER_URL": qworker_store,
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }


def shell(lines: str, directory: Path, environment: dict[str, str]) -> str:
    """Run shell lines, the first failure ends them; returns what they printed."""
    done = subprocess.run(
        ["/bin/sh", "-eu", "-c", lines],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        # Seven commands, one after the other, on a machine that may be busy.
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def without(lines: str, *words: str) -> str:
    """Leave lines out that begin with one of these words."""
    return "\n".join(line for line in lines.splitlines() if not line.startswith(words))


def test_the_example_of_the_readme_does_what_its_comments_say(tmp_path, environment):
    """The delay is an hour here, and then passes at once: a busy machine may take over ten seconds for the commands."""
    example = blocks("README.md", "python")[0]
    assert 'send_later("10s"' in example
    (tmp_path / "shop.py").write_text(example.replace('send_later("10s"', 'send_later("1h"'))
    lines = blocks("README.md", "sh")[1]
    *first, last = without(lines, "pip", "export QWORKER_URL").splitlines()
    assert last.startswith("qworker run shop ")
    out = shell("\n".join(first), tmp_path, environment)
    assert "sent welcome to ada@example.org" in out
    assert "'nobody' is not an address" in out
    assert "reminder" not in out
    app = QWorker("shop", url=environment["QWORKER_URL"])
    advance(app, "1h")
    app.close()
    worker = subprocess.Popen(
        ["qworker", "run", "shop", "--metrics-port", "0"],
        cwd=tmp_path,
        env={**environment, "QWORKER_NAMESPACE": "shop"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "sent reminder to grace@example.org\n"
    worker.send_signal(signal.SIGINT)
    assert worker.wait(60) == 0
    worker.stdout.close()


def test_the_example_of_the_readme_is_about_twenty_lines():
    assert len(blocks("README.md", "python")[0].splitlines()) <= 22


def test_getting_started_works_from_top_to_bottom(tmp_path, environment):
    (tmp_path / "hello.py").write_text(blocks("docs/getting-started.md", "python")[0])
    lines = "\n".join(blocks("docs/getting-started.md", "sh"))
    out = shell(without(lines, "export QWORKER_URL"), tmp_path, environment)
    assert out.startswith("hello here\n")
    assert "HELLO THERE" in out
    assert "10 numbers, 45 together" in out
    assert "greetings" in out


def test_every_python_block_of_the_guides_is_python():
    pages = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")]
    for page in pages:
        for block in blocks(page, "python"):
            compile(block, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_protocol_works_with_nothing_but_redis_cli(environment, qworker_store):
    """A shell sends, receives and settles; our consumer handles what it left, and sees what it said."""
    program("redis-cli")
    seen = []
    app = QWorker("shop")

    @app.task(queue="emails")
    def send_email(to: str) -> None:
        seen.append(to)

    with bind(app, qworker_store) as bound:
        lines = "\n".join(blocks("docs/protocol.md", "sh")).replace("shop:", f"{bound.namespace}:")
        out = shell(lines, ROOT, {**environment, "SOCKET": qworker_store.removeprefix("unix://")})
        assert "ada@example.org" in out
        assert "grace@example.org" in out
        stats = bound.queue("emails").inspect().stats
        assert (stats["sent"], stats["received"], stats["acked"], stats["nacked"]) == (1, 2, 1, 1)
        assert drain(bound).handled == 1
    assert seen == ["grace@example.org"]
