"""Every command that deploy/ tells people to run exists and takes what it is given; so does every log event."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from qworker.cli.main import cli
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.store.connections import ConnectionFactory
from qworker.wire.codec import encode_call
from qworker.wire.reasons import DEATH_REASONS
from tests.deploy.checkers import DEPLOY
from tests.deploy.surface import COMMANDS, FLAGS, events
from tests.tables import each

FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc")
#: Those that do not end by themselves.
ENDLESS = {"run", "daemon", "top", "demo"}
#: Exit code of a command line that is wrong.
BAD_INPUT = 2


def quoted(text: str) -> list[str]:
    """List what stands in backticks, folded lines joined."""
    joined = re.sub(r"\s*\n *(?:# *)?", " ", text)
    return [match.strip() for match in re.findall(r"`([^`]+)`", joined)]


def mentioned(text: str) -> list[str]:
    """List the commands in backticks, without the word qworker."""
    return [word.removeprefix("qworker ") for word in quoted(text) if word.startswith("qworker ")]


def command_of(mention: str) -> str:
    words = mention.split()
    return " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]


@pytest.fixture
def queue(store_url: str, namespace: str) -> Iterator[Queue]:
    """A queue with a ready message and a dead one."""
    with Client(ConnectionFactory(store_url), give_up_s=5) as client:
        queue = Queue(client, namespace, "emails")
        queue.send_many([encode_call("send", [], {})] * 2)
        queue.bury(*queue.receive(1), error="no such address")
        yield queue


@each("path", FILES)
def test_commands_and_flags_exist(path: Path) -> None:
    """Each begins with one of the command line's commands and uses that command's flags."""
    for mention in mentioned(path.read_text()):
        command = command_of(mention)
        assert command in COMMANDS, mention
        used = {word.partition("=")[0] for word in mention.split() if word.startswith("--")}
        assert used <= FLAGS[command], mention


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_commands_take_their_arguments(
    path: Path, queue: Queue, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed with the name of a queue, none is refused. One that is named without its arguments is not typed."""
    monkeypatch.chdir(tmp_path)
    environment = {"QWORKER_URL": store_url, "QWORKER_NAMESPACE": queue.ref.namespace}
    for mention in mentioned(path.read_text()):
        command = command_of(mention)
        if command in ENDLESS or mention == command:
            continue
        words = re.sub(r"{{ \$labels\.queue }}|\bQUEUE\b|\bpdf\b|\bmail\b", "emails", mention)
        unasked = ["--yes"] if "--yes" in FLAGS[command] else []
        done = CliRunner().invoke(cli, [*words.split(), *unasked], env=environment)
        assert done.exit_code != BAD_INPUT, (mention, done.stderr)


@pytest.mark.slow  # parses the whole package
@pytest.mark.xdist_group("code")
@each("path", FILES)
def test_events_are_logged(path: Path) -> None:
    """A word in backticks that looks like an event is one, or a metric or the reason of dead letters."""
    words = [each for each in quoted(path.read_text()) if re.fullmatch(r"[a-z]+(_[a-z]+)+", each)]
    known = events() | DEATH_REASONS.keys()
    assert [word for word in words if not word.startswith("qworker_") and word not in known] == []


def test_mentions_are_found() -> None:
    """The checks above are able to fail."""
    text = "# run `qworker dead\n#   ls`, then `qworker nap --long`, see `nap_taken`"
    assert mentioned(text) == ["dead ls", "nap --long"]
    assert quoted(text)[-1] == "nap_taken"


@pytest.mark.slow  # parses the whole package
@pytest.mark.xdist_group("code")
def test_events_are_found() -> None:
    """So is the check of events."""
    assert "nap_taken" not in events()
    assert {"tick_failed", "child_ended", "metrics_served"} <= events()
