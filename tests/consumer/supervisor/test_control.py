"""What operators ask of a running worker, and what it answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner, Result

from qworker.cli.main import cli
from qworker.consumer.supervisor.operators.control import Control
from qworker.consumer.supervisor.operators.verbs import operator_verbs
from qworker.engine.raw import raw
from qworker.errors import InvalidOptionError
from qworker.wire.control import KEPT_MS, ControlRequest, read_answer, write
from qworker.wire.keys import answer_key, control_key, workers_key
from tests.consumer.driving import until
from tests.consumer.workers import Lab
from tests.tables import each

APP = """
@app.task
def block(n: int) -> None:
    note("started", n)
    while not os.path.exists("go"):
        time.sleep(0.02)
    note("ended", n)
"""


def ask(lab: Lab, *words: str | int | bytes) -> Any:
    command = raw(*words)
    return lab.sender.client.execute(command)


def operate(lab: Lab, *words: str) -> Result:
    """Run a command line at the lab's namespace."""
    environ = {"QWORKER_URL": lab.url, "QWORKER_NAMESPACE": lab.namespace}
    return CliRunner().invoke(cli, words, env=environ)


def name_of_worker(lab: Lab) -> str:
    until(lambda: ask(lab, "HLEN", workers_key(lab.namespace)) == 1)
    name: bytes = ask(lab, "HKEYS", workers_key(lab.namespace))[0]
    return name.decode()


@pytest.mark.slow
def test_a_worker_gets_more_processes_and_gives_them_up_when_their_handlers_end(lab: Lab) -> None:
    """Two more run at once; those taken away end what they run, and what they hold beyond it goes to others."""
    lab.app(APP)
    lab.send_many("block", 3)
    with lab.worker("--batch", "1") as worker:
        name = name_of_worker(lab)
        more = operate(lab, "worker", "scale", name, "+2", "--json")
        assert json.loads(more.stdout) == {"worker": name, "processes": 3, "before": 1}
        until(lambda: len(lab.notes("started")) == 3)
        fewer = operate(lab, "worker", "scale", name, "1")
        assert fewer.stdout == f"{name}: 1 process (was 3)\n"
        assert len(worker.children()) == 3
        # Two places come back before their holders have ended: no child follows these.
        operate(lab, "worker", "scale", name, "3")
        until(lambda: len(worker.children()) == 5)
        operate(lab, "worker", "scale", name, "1")
        (lab.directory / "go").touch()
        until(lambda: len(worker.children()) == 1)
        until(lambda: len(lab.notes("ended")) == 3)
    assert [event["reason"] for event in worker.events("child_ended")] == ["stopped"] * 5
    assert len(worker.events("child_started")) == 5
    assert sorted(lab.noted("ended")) == [[0], [1], [2]]


@dataclass
class Scaled:
    """Who is told how many children to have."""

    wanted: int = 2

    def scale(self, wanted: int) -> None:
        self.wanted = wanted


@each(
    "arguments, wanted",
    [({"to": 5}, 5), ({"by": 3}, 5), ({"by": -1}, 1), ({"to": 1024}, 1024), ({"to": 2}, 2)],
)
def test_a_number_of_processes_is_said_as_it_is_or_by_a_change(
    arguments: dict[str, Any], wanted: int
) -> None:
    """From 1 to 1024; the answer tells the number before as well."""
    said: list[Any] = []
    supervisor: Any = Scaled()

    operator_verbs(supervisor)["scale"](arguments, lambda done, **data: said.append((done, data)))

    assert supervisor.wanted == wanted
    assert said == [(True, {"processes": wanted, "before": 2})]


@each(
    "arguments",
    [{"to": 0}, {"to": -1}, {"by": -2}, {"to": 1025}, {"to": True}, {"to": "4"}, {"by": 1.5}],
)
def test_a_number_of_processes_that_cannot_be_had_is_refused(arguments: dict[str, Any]) -> None:
    """The worker continues as it was."""
    supervisor: Any = Scaled()

    with pytest.raises(InvalidOptionError, match="a number from 1 to 1024"):
        operator_verbs(supervisor)["scale"](arguments, lambda *_: None)

    assert supervisor.wanted == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nobody", "+1"], "'nobody' is not running"),
        (["w", "++1"], "'++1' is not a number"),
        (["w", "x"], "'x' is not a number"),
        (["w", "9999999"], "'9999999' is not a number"),
        (
            ["w", "0"],
            "0 is not possible; a number from 1 to 1024; to end a worker: qworker worker drain",
        ),
        (["w", "1025"], "1025 is not possible"),
    ],
)
def test_an_invalid_number_of_processes_is_refused_before_a_worker_is_asked(
    lab: Lab, words: list[str], said: str
) -> None:
    """Exit code 2, and what to write."""
    done = operate(lab, "worker", "scale", *words)

    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.slow
def test_workers_are_drained_by_their_host(lab: Lab) -> None:
    """All of the host and no others; another host's name is refused."""
    lab.app(APP)
    worker = lab.start()
    name = name_of_worker(lab)
    (host,) = {json.loads(each)["host"] for each in ask(lab, "HVALS", workers_key(lab.namespace))}

    wrong = operate(lab, "worker", "drain", "--host", "elsewhere")
    assert (wrong.exit_code, host in wrong.stderr) == (2, True)
    done = operate(lab, "worker", "drain", "--host", host, "--json")

    assert json.loads(done.stdout) == {"leaving": [name]}
    assert worker.wait() == 0


class Answers:
    """A worker's control channel without a worker."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.asked: list[Any] = []
        self.control = Control(lab.sender.client, lab.namespace, "w", {"echo": self._echo})

    def _echo(self, arguments: Any, reply: Any) -> None:
        self.asked.append(arguments)
        reply(True, "echoed", **arguments)

    def send(self, written: bytes) -> None:
        ask(self.lab, "RPUSH", control_key(self.lab.namespace, "w"), written)

    def of(self, request_id: str) -> list[Any]:
        key = answer_key(self.lab.namespace, request_id)
        assert 0 < ask(self.lab, "PTTL", key) <= KEPT_MS
        return [read_answer(each) for each in ask(self.lab, "LRANGE", key, 0, -1)]


def test_invalid_and_old_requests_are_ignored(lab: Lab) -> None:
    """A request is for now: one that waited for a worker that was away would surprise."""
    answers = Answers(lab)
    for written in (b"", b"x", b"[]", b'{"id": 1}'):
        answers.send(written)
    answers.send(write(ControlRequest("old", "echo", 1000)))
    answers.send(write(ControlRequest("new", "echo", 1000 + KEPT_MS, {"n": 1})))

    answers.control.check(1001 + KEPT_MS)

    assert answers.asked == [{"n": 1}]
    (answer,) = answers.of("new")
    assert (answer.worker, answer.done, answer.text, answer.data) == ("w", True, "echoed", {"n": 1})


def test_a_request_is_carried_out_once(lab: Lab) -> None:
    """It stays in the list for others to see until that expires; a second one of the same words is another."""
    answers = Answers(lab)
    answers.send(write(ControlRequest("a", "echo", 1000, {"n": 1})))
    for now_ms in (1000, 3000, 1000 + KEPT_MS):
        answers.control.check(now_ms)
    answers.send(write(ControlRequest("b", "echo", 5000, {"n": 1})))
    answers.control.check(5000)
    answers.control.check(5000 + KEPT_MS)
    answers.control.check(5001 + KEPT_MS)

    assert answers.asked == [{"n": 1}] * 2
    assert len(answers.of("a")) == len(answers.of("b")) == 1


def test_a_verb_that_a_worker_does_not_know_is_answered(lab: Lab) -> None:
    """An operator of a newer version is informed, and does not wait in vain."""
    answers = Answers(lab)
    answers.send(write(ControlRequest("a", "fly", 1000)))

    answers.control.check(1000)

    (answer,) = answers.of("a")
    assert answer.done is False
    assert "does not know 'fly', only echo" in answer.text
