"""Messages: searched in a bounded number, one with its whole life, and changed by the verbs of the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from qworker import QWorker, Retry
from qworker.client.inspect.life import life
from qworker.client.inspect.search import search
from qworker.client.namespace.audit import read_deeds
from qworker.testing import drain
from qworker.web.application import Dashboard
from tests.cli.conftest import Shop
from tests.web.conftest import Browser, Document, text_of

PAGE = "/queues/emails/messages"


def listed(browser: Browser, query: str) -> list[str]:
    """The ids of a list."""
    return re.findall(
        r'href="/queues/emails/messages/([\w.-]+)\?state', browser.get(f"{PAGE}?{query}").text
    )


def verbs(shop: Shop) -> list[str]:
    deeds = read_deeds(shop.client.execute, shop.namespace)
    return [f"{deed.verb} {deed.target}: {deed.outcome}" for deed in reversed(deeds)]


@pytest.fixture
def spread(shop: Shop) -> dict[str, str]:
    """A message in each state, by the state."""
    ids = {"ready": shop.send("emails", 1)[0]}
    queue = shop.queue()
    [unacked] = queue.receive(1)
    ids["unacked"] = ids.pop("ready")
    ids["ready"] = queue.send({"task": "report", "args": ["Zürich"]})
    [ids["delayed"]] = shop.send("emails", 1, delay="1h")
    [ids["held"]] = shop.send("emails", 1, delay="1h")
    queue.hold(ids["held"])
    [dying] = shop.send("emails", 1, priority=9)
    ids["dead"] = dying
    [message] = queue.receive(1)
    assert message.id == dying
    queue.bury(message, error="ValueError: no such address")
    assert unacked.id == ids["unacked"]
    return ids


@pytest.mark.slow
def test_messages_are_found_by_state_id_task_and_body(
    browser: Browser, spread: dict[str, str]
) -> None:
    """Each condition holds; what fits nothing says how many were looked at."""
    for state, message_id in spread.items():
        assert listed(browser, f"state={state}") == [message_id]
        assert listed(browser, f"id={message_id}") == [message_id]
    assert sorted(listed(browser, "")) == sorted(spread.values())
    assert listed(browser, f"text={quote('zürich')}") == [spread["ready"]]
    assert listed(browser, "task=REPO") == [spread["ready"]]
    assert listed(browser, f"task=report&id={spread['held']}") == []
    assert "0 found among 5 messages searched" in text_of(browser, f"{PAGE}?text=nothing")
    for nonsense in ("state=__class__", "depth=x", "state="):
        assert len(listed(browser, nonsense)) == 5
    assert browser.get(f"{PAGE}?cursor=x").status_code == 400
    assert browser.get("/queues/nothing/messages").status_code == 404


@pytest.mark.slow
def test_a_search_looks_at_a_bounded_number_and_goes_further_if_asked(
    browser: Browser, shop: Shop
) -> None:
    """A page costs the same however long the queue is."""
    shop.send("emails", 6_000)
    newest = shop.queue().peek(1, newest=True)[0].id
    oldest = shop.queue().peek(1)[0].id

    assert listed(browser, f"id={newest}") == [newest]
    page = browser.get(f"{PAGE}?id={oldest}")
    assert "0 found among 5,000 messages searched; the queue has 6,000" in Document(page.text).text
    further = re.search(r'href="([^"]+depth=50000)"', page.text)
    assert further is not None
    assert oldest in text_of(browser, further[1].replace("&amp;", "&"))
    first = browser.get(PAGE).text
    following = re.search(r'href="([^"]+)" rel="next"', first)
    assert following is not None
    ids = re.findall(r"messages/([\w.-]+)\?state", first)
    more = re.findall(r"messages/([\w.-]+)\?state", browser.get(following[1]).text)
    assert (len(ids), len(more), set(ids) & set(more)) == (50, 50, set())
    shown = text_of(browser, f"{PAGE}/{oldest}")
    assert "is not in the queue" not in shown
    assert "waits to be received" in shown


def test_what_the_hook_hides_is_neither_shown_nor_found(
    made: Callable[..., Dashboard], shop: Shop, spread: dict[str, str]
) -> None:
    """Else a search would tell it, letter by letter. A result passes the hook, too."""
    shop.ask("SET", shop.keys().result(spread["ready"]), 'ok\n"Zürich, too"')
    hides = Browser(made(redact=lambda task, body: "hidden" if task == "report" else body))
    assert listed(hides, f"text={quote('zürich')}") == []
    assert listed(hides, "text=hidden") == [spread["ready"]]
    for path in (PAGE, f"{PAGE}/{spread['ready']}"):
        page = hides.get(path).text
        assert ("Zürich" in page, "hidden" in page) == (False, True)


def test_the_life_of_a_message_is_told_from_the_journal(browser: Browser, shop: Shop) -> None:
    """Each delivery with its worker, its wait and its run; a failure and what it died of."""
    app = QWorker(shop.namespace, url=shop.url)
    attempts: list[int] = []

    @app.task(queue="emails", result="1h", retry=Retry.fixed("1ms"))
    def flaky(number: int) -> str:
        attempts.append(number)
        if len(attempts) == 1:
            raise ConnectionError("no answer")
        return "sent at last"

    shop.queue().create(journal="all")
    message_id = flaky.send(7)
    drain(app, errors="collect")
    page = text_of(browser, f"{PAGE}/{message_id}")
    app.close()

    assert "done It has ended" in page
    parts = [
        "Sent",
        "Delivery 1: failed, to be retried",
        "ConnectionError",
        "Delivery 2: done",
        "Result sent at last",
    ]
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    assert "waited" in page
    assert re.search(r"(ran|lasted) [0-9.]+m?s", page)


def test_the_life_of_a_message_is_found_in_a_shard_that_was_given_up(
    browser: Browser, shop: Shop
) -> None:
    """Also if the shards that its queue has now have an empty journal."""
    queue = shop.queue()
    queue.create(journal="all")
    queue.divide(2, wait=0)
    queue.send_many(["x"] * 2)
    queue.send_many(["y"] * 2)
    messages = queue.receive(4)
    queue.ack(*messages)
    queue.divide(1, wait=0)
    shop.ask("DEL", shop.keys().journal)
    (message, *_) = [one for one in messages if one.receipt and one.receipt.shard == 1]
    assert "Delivery 1: done" in text_of(browser, f"{PAGE}/{message.id}")


@pytest.mark.slow
def test_a_page_says_where_the_journal_is_off(
    browser: Browser, spread: dict[str, str], shop: Shop
) -> None:
    """Where it is now, its header and its body are there anyway, and how to record what comes."""
    for state, message_id in spread.items():
        page = text_of(browser, f"{PAGE}/{message_id}")
        assert "The journal of this queue is off" in page
        assert "qworker queue set emails journal=all" in page
        assert state in page
    assert "is being handled; requeued" in text_of(browser, f"{PAGE}/{spread['unacked']}")
    assert "becomes ready" in text_of(browser, f"{PAGE}/{spread['delayed']}")
    assert "waits until it is enqueued" in text_of(browser, f"{PAGE}/{spread['held']}")
    assert f'dead?id={spread["dead"]}"' in browser.get(f"{PAGE}/{spread['dead']}").text
    assert "1 found" in text_of(browser, f"/queues/emails/dead?id={spread['dead']}")
    shop.queue().change(journal="outcomes")
    later = shop.send("emails", 1)[0]
    shop.queue().delete(later)
    assert "Cancelled" in text_of(browser, f"{PAGE}/{later}")
    assert "sends and deliveries are not recorded" in text_of(browser, f"{PAGE}/{spread['ready']}")


@pytest.mark.bad_input("dashboard: ids that do not exist or cannot")
@pytest.mark.slow
def test_a_message_that_is_not_there_has_a_page_that_says_so(browser: Browser, shop: Shop) -> None:
    shop.send()
    for message_id in ("nothing", "x" * 80, "x" * 300, quote("a b"), "%00", quote("<b>"), "-"):
        assert browser.get(f"{PAGE}/{message_id}").status_code == 404, message_id
        for verb in ("delete", "cancel"):
            assert browser.get(f"{PAGE}/{message_id}/{verb}").status_code == 404
        for verb in ("delete", "cancel", "hold", "enqueue"):
            assert browser.post(f"{PAGE}/{message_id}/{verb}").status_code == 400
    assert browser.get("/queues/nothing/messages/x").status_code == 404


def test_a_message_is_found_by_its_id_or_receipt_in_any_queue(browser: Browser, shop: Shop) -> None:
    """A search leads to its page; what is found nowhere says how far it looked."""
    shop.send("orders")
    [message_id] = shop.send("emails")
    [message] = shop.queue().receive(1)
    for wanted in (message_id, str(message.receipt)):
        answer = browser.get(f"/find?id={quote(wanted)}")
        assert answer.status_code == 303
        assert answer.headers["location"] == f"{PAGE}/{message_id}?state=unacked"
    assert "No queue has it among the 2 messages" in text_of(browser, "/find?id=nothing")
    assert "No queue has a delivery with this receipt" in text_of(browser, "/find?id=nothing:1")
    assert "neither an id nor a receipt" in text_of(browser, f"/find?id={quote('<b>')}")


def test_a_search_of_all_queues_ends_in_time(
    browser: Browser, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long queue is read in parts, with a look at the clock between; a short time says what was not read."""
    monkeypatch.setattr("qworker.web.pages.messages._AT_ONCE", 10)
    ids = shop.send(number=45)
    for message_id in (ids[0], ids[20], ids[-1]):
        answer = browser.get(f"/find?id={message_id}")
        assert (answer.status_code, message_id in answer.headers["location"]) == (303, True)
    assert "among the 45 messages searched" in text_of(browser, "/find?id=nothing")
    monkeypatch.setattr("qworker.web.pages.messages._FIND_S", 0.0)
    assert "1 queue was not read to the end" in text_of(browser, "/find?id=nothing")


def test_a_handler_that_runs_leads_to_its_message_and_back(browser: Browser, shop: Shop) -> None:
    [message_id] = shop.send()
    [message] = shop.queue().receive(1)
    running = [{"task": "send_email", "id": str(message.receipt), "seconds": 200.0}]
    shop.add_worker(children=[{"pid": 77, "state": "running", "running": running}])

    page = text_of(browser, f"{PAGE}/{message_id}?state=unacked")

    assert "send_email has been running for 3m20s in web-1-a , pid 77" in page


def test_the_verbs_of_a_message_do_what_the_command_line_does(
    browser: Browser, shop: Shop, spread: dict[str, str]
) -> None:
    """Hold, enqueue, cancel, delete; what destroys asks first, and each is in the audit trail."""
    queue = shop.queue()
    ready = spread["ready"]
    assert browser.post(f"{PAGE}/{ready}/hold").status_code == 303
    assert queue.show(ready).state == "held"
    moved = browser.post(f"{PAGE}/{ready}/enqueue").headers["location"]
    assert "enqueued: it is the last of the ready messages" in text_of(browser, moved)
    assert queue.show(ready).state == "ready"
    assert browser.post(f"{PAGE}/{ready}/enqueue").status_code == 400

    question = Document(browser.get(f"{PAGE}/{ready}/cancel").text)
    assert "1 ready message of emails, a call of report." in question.text
    assert queue.show(ready) is not None
    assert browser.post(f"{PAGE}/{ready}/cancel").status_code == 303
    assert queue.show(ready) is None
    assert browser.post(f"{PAGE}/{spread['unacked']}/cancel").status_code == 303
    assert "This cannot be undone" in text_of(browser, f"{PAGE}/{spread['dead']}/delete")
    assert browser.post(f"{PAGE}/{spread['dead']}/delete").status_code == 303
    assert queue.inspect().dead == 0
    assert browser.post(f"{PAGE}/{spread['delayed']}/cancel", {"how": "gently"}).status_code == 400
    assert verbs(shop) == [
        f"message hold emails {ready}: held: it waits until it is enqueued",
        f"message enqueue emails {ready}: enqueued: it is the last of the ready messages",
        f"message enqueue emails {ready}: failed: message: was not enqueued; it is in another state, or has "
        "ended: reload the page",
        f"message cancel emails {ready}: cancelled: it will not run",
        f"message cancel emails {spread['unacked']}: its handler is asked to stop",
        f"message delete emails {spread['dead']}: deleted, dead",
        f"message cancel emails {spread['delayed']}: failed: how: 'gently' is not offered; use the form",
    ]


@pytest.mark.bad_input("journal: entries of another format, lines that are not headers")
def test_a_life_leaves_out_what_it_cannot_read(shop: Shop) -> None:
    """Of one shard or many, up to a number of bytes."""
    queue = shop.queue()
    queue.create(journal="all")
    message_id = queue.send({"a": 1})
    key = shop.keys().journal
    shop.ask("XADD", key, "*", "other", "format")
    fields: tuple[Any, ...] = ("n", "x", "k", "1", "b", "y", "t", "z", "w", "-", "e1")
    for group in (b"", b"\xff\xfe", b"sent - - - -", b"sent - !!!! - - -\nq1 %s 1 0 0 0 0" % message_id.encode(),
                  b"sent - - - - -\nq1 %s x" % message_id.encode()):  # fmt: skip
        shop.ask("XADD", key, "*", *fields, group)

    told = shop.client.run(life(queue.ref, message_id, most_bytes=2**20))

    assert sorted(event.name for event in told.events) == ["sent", "sent"]
    assert (told.whole, told.read) == (True, 7)
    short = shop.client.run(life(queue.ref, message_id, most_bytes=1))
    assert short.whole is False
    queue.divide(3)
    assert len(shop.client.run(life(queue.ref, message_id, most_bytes=2**20)).events) == 2


def test_a_search_of_shards_reads_all_of_them(shop: Shop) -> None:
    shop.send("emails", 1)
    shop.queue().divide(3)
    shop.send("emails", 50)
    found = shop.client.run(
        search(shop.queue().ref, lambda one: True, most_read=1000, most_found=1000)
    )
    assert (len(found.found), found.read, found.cursor) == (51, 51, "0")


# -- large bodies ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_page_of_large_messages_lists_fewer(made: Callable[..., Dashboard], shop: Shop) -> None:
    """It ends behind 32 MiB, and the next one continues: none is missed or listed twice."""
    queue = shop.queue()
    queue.create(maxsize="8MiB")
    ids = [queue.send({"text": "x" * 4 * 2**20}) for _ in range(10)]
    browser = Browser(made())
    first = listed(browser, "")
    cursor = re.search(r"cursor=([\w%./-]+)", browser.get(PAGE).text)
    assert cursor is not None
    rest = listed(browser, f"cursor={cursor[1]}")
    assert len(first) == 8
    assert sorted(first + rest) == sorted(ids)


def test_a_search_ends_behind_its_bytes(shop: Shop) -> None:
    """What it has read by then counts, and its cursor continues it."""
    queue = shop.queue()
    queue.send_many([{"text": "x" * 100_000}] * 20)
    queue.send_many([{"text": "y"}] * 20)

    def found(cursor: str) -> Any:
        plan = search(
            queue.ref,
            lambda one: True,
            most_read=1000,
            most_found=1000,
            most_bytes=500_000,
            cursor=cursor,
        )
        return shop.client.run(plan)

    first = found("0")
    assert 5 <= first.read < 40
    read, cursor = first.read, first.cursor
    while cursor != "0":
        more = found(cursor)
        read, cursor = read + more.read, more.cursor
    assert read == 40


def test_a_large_body_is_written_as_far_as_it_is_shown(
    made: Callable[..., Dashboard], shop: Shop
) -> None:
    """Indenting 4 MiB takes most of a second; a list needs a line of it, and a page some screens."""
    written = []

    class Part:
        def __str__(self) -> str:
            written.append(1)
            return "part"

    parts = [Part()] * 100_000
    message_id = shop.queue().send({"text": "x"})
    browser = Browser(made(redact=lambda task, content: parts))
    assert '[ "part", "part",' in text_of(browser, PAGE)
    assert 10 < len(written) < 100
    written.clear()
    shown = text_of(browser, f"{PAGE}/{message_id}?state=ready")
    assert "cut: these are 16,384 characters" in shown
    assert f"qworker message show {message_id} --queue emails --json" in shown
    assert 1000 < len(written) < 3000


def test_a_whole_body_has_no_hint(made: Callable[..., Dashboard], shop: Shop) -> None:
    """What is shown whole needs no command."""
    message_id = shop.queue().send({"text": "short"})
    shown = text_of(Browser(made()), f"{PAGE}/{message_id}?state=ready")
    assert '"text": "short"' in shown
    assert "All of it" not in shown
