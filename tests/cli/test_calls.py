"""`qworker calls`: groups of calls for operators."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from qworker import Failure, QWorker, TaskEndedError, chain, group
from qworker.testing import drain
from tests.cli.conftest import Shop


@pytest.fixture
def app(shop: Shop) -> Iterator[QWorker]:
    """An app on the shop's namespace."""
    made = QWorker(shop.namespace, url=shop.url)
    yield made
    made.close()


def start(app: QWorker) -> Any:
    """Start a group of two calls, of which one fails, whose callback waits for successes."""

    @app.task(queue="urls", result="1h", max_receives=1)
    def fetch(url: str) -> str:
        if url == "bad":
            raise ValueError("no such host")
        return url

    @app.task(queue="web", result="1h")
    def publish(pages: list[str]) -> int:
        return len(pages)

    return group([fetch.call("a"), fetch.call("bad")], policy="successes").then(publish).start()


@pytest.mark.slow
def test_groups_are_listed_shown_and_abandoned(run: Any, app: QWorker) -> None:
    """With what they wait for; an abandoned one ends the wait for its result."""
    handle = start(app)
    assert "only the oldest" not in run("calls", "ls", "-n", "1").err
    [listed] = run("calls", "ls", "--json").json["groups"]
    assert (listed["id"], listed["queue"], listed["state"]) == (handle.id, "web", "running")
    assert (listed["calls"], listed["left"]) == (2, 2)
    drain(app, queues=["urls"], errors="collect")
    drain(app, queues=["web"])
    shown = run("calls", "show", handle.id).out
    assert "blocked" in shown
    assert f"{handle.id}.1" in shown
    assert "blocked" in run("calls", "ls", "web").out
    assert "nothing was changed" in run("calls", "abandon", handle.id, "--dry-run").out
    assert run("calls", "abandon", handle.id, "--yes").code == 0
    with pytest.raises(TaskEndedError, match="cancelled"):
        handle.result(0)
    assert "no group of calls" in run("calls", "ls").err


def test_a_group_shows_that_it_cancels_the_rest(run: Any, app: QWorker) -> None:
    """Beside its policy, as text and as JSON."""

    @app.task(queue="urls", result="1h")
    def fetch(url: str) -> str:
        return url

    calls = [fetch.call("a"), fetch.call("b")]
    plain = group(calls, policy="first").then(fetch).start()
    cancels = group(calls, policy="first", cancel_rest=True).then(fetch).start()
    assert "first, cancels the rest" in run("calls", "show", cancels.id).out
    assert "rest" not in run("calls", "show", plain.id).out
    shown = {
        group["id"]: group["cancel_rest"] for group in run("calls", "ls", "--json").json["groups"]
    }
    assert shown == {plain.id: False, cancels.id: True}


def test_a_group_says_which_of_its_calls_wait_in_an_outbox(run: Any, app: QWorker) -> None:
    """How many, since when, and for which queue; none once that has taken them."""
    app.queue("urls").pause("in")
    handle = start(app)
    [waits] = run("calls", "show", handle.id, "--json").json["unsent"]
    assert (waits["destination"], waits["calls"]) == ("urls", 2)
    assert abs(waits["since_ms"] - time.time() * 1000) < 60_000
    shown = run("calls", "show", handle.id).out
    assert "2 calls for queue urls, since" in shown
    assert "qworker queue show urls" in shown
    app.queue("urls").resume()
    drain(app, queues=["web"])
    drain(app, queues=["urls"], errors="collect")
    assert run("calls", "show", handle.id, "--json").json["unsent"] == []
    assert "in outbox" not in run("calls", "show", handle.id).out


def test_groups_are_cancelled_with_their_calls(run: Any, app: QWorker) -> None:
    """The answer counts what waited, what runs, and what had ended."""
    handle = start(app)
    drain(app, queues=["urls"], max_messages=1)
    assert "would cancel" in run("calls", "cancel", handle.id, "--dry-run").out
    done = run("calls", "cancel", handle.id, "--yes", "--json").json
    assert (done["cancelled"], done["cancelling"], done["too_late"]) == (1, 0, 1)
    assert app.queue("urls").inspect().ready == 0
    assert "0 messages waited" in run("calls", "cancel", handle.id, "--yes").out
    assert run("calls", "cancel", "x", "--yes").code == 1


@pytest.mark.slow
def test_a_message_that_is_not_sent_yet_is_cancelled_with_the_calls_before_it(
    run: Any, app: QWorker
) -> None:
    """By the id that a handle has: of a callback, and with its queue of the last message of a chain."""
    handle = start(app)
    error = run("message", "show", handle.id)
    assert error.code == 1
    assert (
        f"not sent yet: it follows a group of calls, see qworker calls show {handle.id}"
        in error.err
    )
    assert "nothing was changed" in run("message", "cancel", handle.id, "--dry-run").out
    assert len(app.queue("web").calls()) == 1
    cancelled = run("message", "cancel", handle.id, "--yes", "--json").json
    assert (cancelled["answer"], cancelled["queue"], cancelled["state"]) == (
        "cancelled",
        "web",
        None,
    )
    steps = chain(app.tasks["fetch"].call("a"), app.tasks["fetch"].then()).start()
    assert run("message", "cancel", steps.id, "--yes").code == 1
    assert "will not run" in run("message", "cancel", steps.id, "--queue", "urls", "--yes").out
    assert drain(app).handled == 0
    for one in (handle, steps):
        with pytest.raises(TaskEndedError, match="cancelled"):
            one.result(0)
    none = run("message", "cancel", "0123456789abcdefghij-1", "--queue", "urls", "--yes")
    assert (none.code, "nor a call before it" in none.err) == (1, True)


def test_a_group_that_is_not_there_is_an_error(run: Any, app: QWorker) -> None:
    """Unknown, or decided already."""
    assert run("calls", "show", "x").code == 1
    assert "not found" in run("calls", "abandon", "x", "--yes").err

    @app.task(queue="urls", result="1h")
    def fetch(url: str) -> str:
        return url

    @app.task(queue="web")
    def publish(pages: list[str | Failure]) -> None: ...

    group_id = group([fetch.call("a")]).then(publish).send()
    drain(app, queues=["urls"])
    ran = run("calls", "abandon", group_id, "--yes")
    assert ran.code in (0, 1)
    drain(app)
    assert run("calls", "show", group_id, "--queue", "web").code == 1


def test_doctor_names_groups_that_wait_for_an_operator(run: Any, app: QWorker) -> None:
    """For dead letters, or because a start has failed midway."""
    handle = start(app)
    drain(app, queues=["urls"], errors="collect")
    drain(app, queues=["web"])
    told = run("doctor").out
    assert "groups of calls wait for dead letters to be redriven: web 1" in told
    assert f"qworker calls abandon {handle.id}" in told
    join = app.queue("web").keys.join(handle.id)
    app.client.ask("HSET", join, "@sent", 1, "@made", 1)
    assert "started in part" in run("doctor").out
    assert "start it again with its id" in run("calls", "show", handle.id).out


def test_doctor_and_fsck_name_groups_whose_calls_are_gone(run: Any, app: QWorker) -> None:
    """Both say what is stuck and what to do; a repair lets the group go on."""
    handle = start(app)
    keys = app.queue("urls").keys
    app.client.ask("HSET", app.queue("web").keys.join(handle.id), "@made", 1)
    app.client.ask("DEL", keys.ready[0])
    app.client.ask("HDEL", keys.stats, "stored")
    told = run("doctor").out
    assert "no queue has a message, so their calls are gone: web 1" in told
    assert "qworker fsck --repair counts such calls as discarded" in told
    found = run("fsck")
    assert (found.code, "lost call" in found.out) == (3, True)
    assert f"calls {handle.id}" in found.out
    run("fsck", "--repair", "--yes")
    assert "so their calls are gone" not in run("doctor").out
