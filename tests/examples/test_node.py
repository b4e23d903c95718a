"""The client for Node, against our consumers and our sender, and over a connection that breaks."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from qworker.testing import drain
from tests.chaos import ChaosProxy
from tests.programs import program
from tests.servers import missing

pytestmark = pytest.mark.slow  # starts processes

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "node"
BEGIN = """
const { connect, RefusedError } = require(process.env.CLIENT)
const main = async (connection, queue, say, signal) => { %s }
;(async () => {
  const connection = await connect(JSON.parse(process.env.WHERE))
  const queue = connection.queue(process.env.NAMESPACE, 'emails')
  const stop = new AbortController()
  process.on('SIGTERM', () => stop.abort())
  await main(connection, queue, (value) => console.log(JSON.stringify(value)), stop.signal)
  queue.close()
  connection.close()
})()
"""


@pytest.fixture(scope="session")
def home(request) -> Path:
    """A directory with the client and what it needs from npm; made once and kept in pytest's cache."""
    for name in ("node", "npm"):
        program(name)
    package = (EXAMPLE / "package.json").read_bytes()
    digest = hashlib.sha256(package).hexdigest()[:12]
    made = request.config.cache.mkdir("qworker-node-example") / digest
    if not (made / "ready").exists():
        making = made.with_name(f"{digest}-{os.getpid()}")
        making.mkdir()
        (making / "package.json").write_bytes(package)
        quiet = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(
            ["npm", "install", *quiet, "--loglevel=error"],
            cwd=making,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            missing(f"npm install failed: {done.stderr[-500:]}")
        (making / "ready").touch()
        try:
            making.rename(made)
        except OSError:  # Another process of pytest-xdist was first.
            shutil.rmtree(making)
    return made


@pytest.fixture
def start(app, home, tmp_path, qworker_store) -> Callable[..., subprocess.Popen[str]]:
    """Start JavaScript with a connection, a queue, and `say` to print JSON."""
    client = tmp_path / "qworker.js"
    shutil.copy(EXAMPLE / "qworker.js", client)
    (tmp_path / "node_modules").symlink_to(home / "node_modules")

    def run(source: str, url: str = "", **variables: str) -> subprocess.Popen[str]:
        where: dict[str, object] = {"socket": {"path": qworker_store.removeprefix("unix://")}}
        environment = {
            **os.environ,
            "CLIENT": str(client),
            "QWORKER_SCRIPTS": str(ROOT / "docs" / "scripts"),
            "WHERE": json.dumps({"url": url} if url else where),
            "NAMESPACE": app.namespace,
            **variables,
        }
        return subprocess.Popen(
            ["node", "-e", BEGIN % source], env=environment, stdout=subprocess.PIPE, text=True
        )

    return run


@pytest.fixture
def node(start) -> Callable[..., list[object]]:
    """Run JavaScript to its end; what it said."""

    def run(source: str, **variables: str) -> list[object]:
        process = start(source, **variables)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, out
        return [json.loads(line) for line in out.splitlines()]

    return run


def test_what_node_sends_is_handled(app, node):
    """Calls of a task, with priority, delay and time to live; and it knows a refusal."""
    ids = node("""
        const call = { task: 'send_email', args: ['ada@example.org'] }
        say(await Promise.all([1, 2, 3].map(() => queue.send(call))))
        await queue.send(call, { priority: 5, ttlMs: 60000 })
        await queue.send(call, { delayMs: 60000 })
    """)[0]
    inspection = app.queue("emails").inspect()
    assert (inspection.ready, inspection.delayed, inspection.stats["sent"]) == (4, 1, 5)
    assert [message.id for message in app.queue("emails").peek()][-3:] == ids
    assert drain(app).handled == 5
    app.queue("emails").pause("in")
    said = node(
        "try { await queue.send(1) } catch (e) { say([e instanceof RefusedError, e.code]) }"
    )
    assert said == [[True, "PAUSED"]]


def test_what_we_send_node_receives_and_acks(app, node):
    """One or many, bytes as they are; an ack counts once, and frees the unique key."""
    queue = app.queue("emails")
    queue.send(bytes(range(256)))
    queue.send_many([{"n": 1}, {"n": 2}], max_receives=9)
    first = queue.send("x", unique="ä %41 = x\n")
    said = node("""
        const [one] = await queue.receive()
        say(one.body.toString('hex'))
        say(await queue.ack(one))
        say(await queue.ack(one))
        const many = await queue.receive(10)
        say(many.map((m) => [m.json(), m.receiveCount, m.flags.m ?? m.flags.u]))
        say(await queue.extend(60000, ...many))
        say(await queue.ack(...many, one))
        say(await queue.receive(10))
    """)
    assert said == [
        bytes(range(256)).hex(), [True], [False],
        [[{"n": 1}, 1, "9"], [{"n": 2}, 1, "9"], ["x", 1, "ä %41 = x\n"]],
        [True] * 3, [True] * 3 + [False], [],
    ]  # fmt: skip
    assert queue.send("y", unique="ä %41 = x\n") != first
    stats = queue.inspect().stats
    assert (stats["acked"], stats["stored"]) == (4, 1)


@pytest.mark.nightly("examples/test_shell.py::test_a_message_has_its_own_visibility")
def test_a_message_has_its_own_visibility(app, node):
    """It is split off into its own lease, with that deadline; the others stay together."""
    queue = app.queue("emails")
    queue.send_many(["x", "y"])
    queue.send("z", visibility="1h")
    said = node("""
        const got = await queue.receive(3)
        say(new Set(got.map((message) => message.lease)).size)
        say(got[2].deadlineMs - got[0].deadlineMs > 3000000)
        say(await queue.ack(...got))
    """)
    assert said == [2, True, [True] * 3]


@pytest.mark.nightly("examples/test_shell.py::test_a_nack_brings_a_message_back")
def test_node_nacks_releases_and_buries(app, node):
    """A failure is counted, a release is not; what no consumer can take is buried."""
    queue = app.queue("emails")
    queue.client.run(queue.ref.announce())
    queue.send("fails", max_receives=2)
    said = node("""
        await connection.client.sendCommand(['RPUSH', `${process.env.NAMESPACE}:{emails}:ready`, 'hello', '{"p": 1}'])
        const [first, plain] = await queue.receive(3)
        say(await queue.release(plain))
        say(await queue.nack(first, { errorClass: 'TypeError', error: 'no' }))
        say((await queue.receive(2)).map((m) => [m.json(), m.receiveCount]))
    """)
    assert said == [[True], True, [[{"p": 1}, 1], ["fails", 2]]]
    assert [dead_letter.reason for dead_letter in queue.dead()] == ["foreign"]
    (fails,) = [message for message in queue.peek(state="unacked") if message.body == b'"fails"']
    assert fails.nacks == 1


def test_node_works_through_a_queue(app, start):
    """Woken at once by a send; what a handler throws is nacked; SIGTERM ends it, and gives back what had not begun."""
    queue = app.queue("emails")
    worker = start("""
        await queue.work(async (message) => {
          const { n } = message.json()
          say(n)
          if (n === 1 && message.receiveCount === 1) throw new TypeError('first time')
          if (n === 2) await new Promise((done) => setTimeout(done, 300))
        }, { signal, retryMs: 0 })
    """)
    queue.send({"n": 1})
    assert [worker.stdout.readline() for _ in range(2)] == ["1\n", "1\n"]
    queue.send_many([{"n": 2}, {"n": 3}, {"n": 4}])
    assert worker.stdout.readline() == "2\n"
    worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=60)
    assert (worker.returncode, out) == (0, "")
    inspection = queue.inspect()
    assert (
        inspection.stats["acked"],
        inspection.stats["nacked"],
        inspection.ready,
        inspection.unacked,
    ) == (2, 1, 2, 0)
    assert [message.receives for message in queue.peek()] == [0, 0]


@pytest.mark.nightly(
    "examples/test_shell.py::test_nothing_is_stored_or_received_twice_where_replies_are_lost"
)
def test_nothing_is_stored_or_received_twice_where_replies_are_lost(app, start, qworker_store):
    """Every third reply never arrives: sends are repeated on their lane, receives with their lease."""
    with ChaosProxy(qworker_store) as proxy:
        proxy.cut_reply(every=3, of=b"EVALSHA")
        process = start(
            """
            const ids = []
            for (let n = 0; n < 20; n++) ids.push(await queue.send({ n }))
            say(ids)
            const got = []
            while (got.length < 20) got.push(...await queue.receive(5))
            await queue.ack(...got)
            say(got.map((message) => message.id))
            """,
            url=proxy.url,
        )
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert proxy.replies_cut > 5
    sent, got = (json.loads(line) for line in out.splitlines())
    assert got == sent
    stats = app.queue("emails").inspect().stats
    assert [stats[name] for name in ("sent", "received", "acked", "stored")] == [20, 20, 20, 0]
