"""The example of an agent: a browser, a web server, and a worker whose child is killed while it writes."""

from __future__ import annotations

import http.client
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, TaskEndedError
from qworker.testing import advance, drain
from tests.consumer.driving import until
from tests.consumer.forkserver import Order, start_module
from tests.timing import DEADLINE_S

pytestmark = pytest.mark.needs("starlette", "uvicorn")

ROOT = Path(__file__).parents[2]
#: The app of the worker: its model kills the process once, after two tokens.
KILLED = """
import os, signal
from pathlib import Path
from examples import agent

async def model(topic):
    for number, token in enumerate(["one", "two", "three", "four"]):
        if number == 2 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield token

agent.model = model
app = agent.app
app.namespace = {namespace!r}
"""


class Events:
    """The stream of a letter, as a browser reads it."""

    def __init__(self, port: int, letter: str, last: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        headers = {"Last-Event-ID": last} if last else {}
        self._connection.request("GET", f"/letters/{letter}/events", headers=headers)
        self._response = self._connection.getresponse()
        assert self._response.headers["content-type"].startswith("text/event-stream")

    def read(self, until_key: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (id, data) up to an event that has a key, or the last one; the last has the id ''."""
        event: dict[str, str] = {}
        for line in iter(self._response.readline, b""):
            name, _, value = line.decode().strip().partition(": ")
            if name:
                event[name] = value
                continue
            data = json.loads(event["data"])
            yield event.get("id", ""), data
            if until_key in data or event.get("event") == "end":
                return
            event = {}

    def close(self) -> None:
        """Hang up."""
        self._response.close()
        self._connection.close()


@pytest.fixture
def app(qworker_bind: Any) -> QWorker:
    from examples import agent

    bound: QWorker = qworker_bind(agent.app)
    return bound


@pytest.fixture
def port(app: QWorker) -> Iterator[int]:
    """A web server on its own port."""
    import uvicorn

    from examples import agent

    config = uvicorn.Config(
        agent.web, port=0, loop="asyncio", lifespan="on", log_level="warning", ws="none",
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(DEADLINE_S)


@pytest.fixture
def worker(app: QWorker, qworker_store: str, tmp_path: Path) -> Iterator[None]:
    (tmp_path / "killed_agent.py").write_text(KILLED.format(namespace=app.namespace))
    environ = {
        **os.environ, "QWORKER_URL": qworker_store, "QWORKER_NAMESPACE": app.namespace,
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    words = ["run", "killed_agent", "--procs", "1", "--metrics-port", "0"]
    with Path(os.devnull).open("wb") as unread:
        process = start_module(
            Order("qworker", words, str(tmp_path), environ, nursery=True), unread
        )
    yield
    process.terminate()
    process.wait(DEADLINE_S)


def post(port: int, path: str, body: object = b"") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", f"/letters/{path}", body=data)
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.slow
def test_a_letter_survives_its_worker_and_the_browser(
    app: QWorker, port: int, worker: None, tmp_path: Path
) -> None:
    """Each event comes once, in order, over a broken connection and a killed child; an approval continues the run."""
    from examples import agent

    assert [post(port, "a", b"rain") for _ in range(2)] == [202, 202]
    assert post(port, "a", b"snow") == 409
    first = Events(port, "a")
    seen = [*first.read("token")]
    first.close()
    resumed = Events(port, "a", seen[-1][0])
    seen += resumed.read("waits")
    whole = Events(port, "a")
    assert [*whole.read("waits")] == seen
    whole.close()
    begun = [number for number, (_, data) in enumerate(seen) if "draft" in data]
    assert len(begun) == 2, "the child was killed once"
    assert (tmp_path / "killed").exists()
    written = [data["token"] for _, data in seen[begun[1] :] if "token" in data]
    assert written == ["one", "two", "three", "four"]

    handle = agent.letter.handle("a")
    until(lambda: handle.status().state == "waiting")  # type: ignore[union-attr]
    assert [post(port, "a/approval", wrong) for wrong in ({"by": 7, "send": True}, {})] == [
        400,
        400,
    ]
    assert post(port, "a/approval", {"by": "ann", "send": True}) == 202
    *_, (_, done), (_, end) = resumed.read("nothing")
    resumed.close()
    assert (done, end) == ({"done": "sent for ann: one two three four"}, {})
    assert handle.result("1m") == done["done"]
    assert post(port, "a/approval", {"by": "bob", "send": True}) == 409

    assert post(port, "b", b"rain") == 202
    other = Events(port, "b")
    assert "waits" in [*other.read("waits")][-1][1]
    until(lambda: agent.letter.handle("b").status().state == "waiting")  # type: ignore[union-attr]
    assert post(port, "b/cancel") == 200
    assert [*other.read("nothing")] == [("", {})]
    other.close()
    with pytest.raises(TaskEndedError):
        agent.letter.handle("b").result(0)

    assert [post(port, f"{name}/resume", b"c") for name in ("b", "b", "a", "none")] == [
        202,
        202,
        409,
        409,
    ]
    resumed = Events(port, "c")
    assert [data for _, data in resumed.read("waits")] == [
        {"draft": "one two three four"},
        {"waits": "for an approval"},
    ]
    assert post(port, "c/approval", {"by": "ann", "send": True}) == 202
    assert next(resumed.read("nothing"))[1] == done
    resumed.close()


@pytest.mark.parametrize("days", [6, 8])
def test_an_approval_may_take_days(app: QWorker, days: int) -> None:
    """The run waits without a worker, and sends for the first answer; after a week it ends without one."""
    from examples import agent

    handle = agent.letter.options(id=f"days-{days}").start("rain")
    drain(app, include_delayed=False)
    status = handle.status()
    assert status is not None
    assert (status.state, status.waits_for) == ("waiting", "Approval")
    advance(app, f"{days}d")
    drain(app, include_delayed=False)
    if days < 7:
        handle.signal(agent.Approval(by="ann", send=True))
        drain(app)
    draft = "A short letter about rain ."
    assert handle.result(0) == (f"sent for ann: {draft}" if days < 7 else "no answer")


def test_the_page_and_wrong_positions(app: QWorker, port: int) -> None:
    """The page loads; a position that is none is refused, not taken for the beginning."""
    for path, last, status in (("/", "", 200), ("/letters/a/events", "x", 400)):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        connection.request("GET", path, headers={"Last-Event-ID": last})
        response = connection.getresponse()
        assert response.status == status
        assert response.read()
        connection.close()
