"""The client in sh and redis-cli, against our consumers and our sender."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qworker.testing import drain
from tests.chaos import ChaosProxy
from tests.programs import program

CLIENT = Path(__file__).parents[2] / "examples" / "shell" / "client.sh"
CALL = '{"task": "send_email", "args": ["ada@example.org"]}'


@pytest.fixture
def environment(app, qworker_store):
    """What the client goes by."""
    program("redis-cli")
    socket = qworker_store.removeprefix("unix://")
    return {**os.environ, "REDIS_CLI": f"redis-cli -s {socket}", "NAMESPACE": app.namespace}


@pytest.fixture
def client(environment) -> Callable[..., tuple[int, str]]:
    """Run the client; its exit code and what it printed."""

    def run(*words: str, code: int = 0, **variables: str) -> str:
        done = subprocess.run(
            ["sh", str(CLIENT), *words],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.slow
def test_what_a_shell_sends_is_handled(app, client):
    """A call of a task, stored once, delayed if it says so."""
    message_id = client("send", "emails", CALL).strip()
    client("send", "emails", CALL, DELAY_MS="60000")
    inspection = app.queue("emails").inspect()
    assert (inspection.ready, inspection.delayed) == (1, 1)
    assert app.queue("emails").peek()[0].id == message_id
    assert drain(app).handled == 2
    assert app.seen == ["ada@example.org"] * 2


@pytest.mark.slow
def test_what_we_send_a_shell_receives_and_acks(app, client):
    """Bodies come as they are, newlines included; an ack counts once."""
    queue = app.queue("emails")
    for body in (b'{"a": 1}', b"two\nlines\n\n", b"text %s \\n $HOME"):
        queue.send(body)
        receipt, _, got = client("receive", "emails").partition("\n")
        assert got.rstrip("\n") == body.decode().rstrip("\n")
        client("ack", "emails", receipt)
        client("ack", "emails", receipt, code=3)
    client("receive", "emails", code=3)
    stats = queue.inspect().stats
    assert (stats["received"], stats["acked"], stats["stored"]) == (3, 3, 0)


@pytest.mark.slow
def test_a_nack_brings_a_message_back(app, client):
    """At once or later, counted, and dead at its max receives with the error's text."""
    queue = app.queue("emails")
    queue.send("x", max_receives=2)
    client("nack", "emails", client("receive", "emails").split("\n")[0])
    assert queue.peek()[0].nacks == 1
    client("nack", "emails", client("receive", "emails").split("\n")[0], "5", "no answer")
    assert queue.dead()[0].error == "no answer"


@pytest.mark.slow
def test_a_message_has_its_own_visibility(app, client):
    """It is split off into its own lease, with that deadline; the receipt is of that one."""
    queue = app.queue("emails")
    queue.send("x", visibility="1h")
    receipt = client("receive", "emails").split("\n")[0]
    (held,) = queue.peek(state="unacked")
    assert held.at_ms - queue.inspect().now_ms > 3_000_000
    client("ack", "emails", receipt)


@pytest.mark.slow
def test_an_ack_frees_the_unique_key(app, client):
    """Of a message that holds one, whatever is in it."""
    queue = app.queue("emails")
    for key in ("a@b.c", "ä %41 = x\n"):
        first = queue.send("x", unique=key)
        assert queue.send("y", unique=key) == first
        client("ack", "emails", client("receive", "emails").split("\n")[0])
        assert queue.send("z", unique=key) != first
        queue.pop()


def test_plain_and_foreign_items(app, client, environment):
    """JSON that another program pushed is received; what no consumer can take is buried, and the next one received."""
    queue = app.queue("emails")
    for item in ("hello", '{"plain": 1}'):
        words = [*environment["REDIS_CLI"].split(), "RPUSH", queue.keys.ready[0], item]
        subprocess.run(words, check=True, capture_output=True)
    receipt, _, body = client("receive", "emails").partition("\n")
    assert body == '{"plain": 1}\n'
    client("ack", "emails", receipt)
    assert [dead_letter.reason for dead_letter in queue.dead()] == ["foreign"]


def test_a_paused_or_full_queue_refuses(app, client):
    """A refusal is an error, and nothing is stored."""
    app.queue("emails").pause("in")
    client("send", "emails", CALL, code=1)
    assert app.queue("emails").inspect().ready == 0


@pytest.mark.slow
def test_a_shell_works_through_a_queue(app, environment, tmp_path):
    """Exit code 0 acks, another one nacks; a long command keeps its message; SIGTERM ends it after the running one."""
    queue = app.queue("emails")
    queue.send_many([{"n": number} for number in range(3)])
    queue.send({"fail": 1}, max_receives=1)
    queue.send({"slow": 1})
    handler = tmp_path / "handler.sh"
    handler.write_text("case $(cat) in *slow*) sleep 2.5 ;; *fail*) exit 7 ;; esac\n")
    worker = subprocess.Popen(
        ["sh", str(CLIENT), "work", "emails", "sh", str(handler)],
        env={**environment, "VISIBILITY_MS": "3000"},
    )
    try:
        deadline, deadlines = time.monotonic() + 60, set()
        while queue.inspect().stats.get("acked", 0) < 4:
            assert time.monotonic() < deadline
            assert worker.poll() is None
            deadlines |= {
                message.at_ms for message in queue.peek(state="unacked") if b"slow" in message.body
            }
            time.sleep(0.02)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    finally:
        worker.kill()
    assert len(deadlines) > 1
    inspection = queue.inspect()
    assert (inspection.stored, inspection.dead) == (0, 1)
    assert inspection.stats["received"] == 5
    (dead_letter,) = queue.dead()
    assert json.loads(dead_letter.message.body) == {"fail": 1}
    assert dead_letter.error == "sh ended with exit code 7"


@pytest.mark.slow
def test_nothing_is_stored_or_received_twice_where_replies_are_lost(app, client, qworker_store):
    """The call is made again: the send has a lane for it, and the receive asks what its lease holds."""
    queue = app.queue("emails")
    with ChaosProxy(qworker_store) as proxy:
        cli = f"redis-cli -p {proxy.url.rpartition(':')[2]}"
        proxy.cut_next_reply(of=b"EVALSHA")
        client("send", "emails", CALL, REDIS_CLI=cli)
        assert proxy.replies_cut == 1
        assert queue.inspect().stats["sent"] == 1
        proxy.cut_next_reply(of=b"EVALSHA")
        receipt, _, body = client("receive", "emails", REDIS_CLI=cli).partition("\n")
        assert proxy.replies_cut == 1
    assert body == CALL + "\n"
    client("ack", "emails", receipt)
    stats = queue.inspect().stats
    assert [stats[name] for name in ("sent", "received", "acked", "stored")] == [1, 1, 1, 0]
