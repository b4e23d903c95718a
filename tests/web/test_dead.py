"""Dead letters: grouped, found among many, shown, and changed after a question with their number."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from qworker.client.dead.filter import DeadFilter
from qworker.client.dead.fingerprint import error_pattern, fingerprint
from qworker.client.dead.newest import newest
from qworker.client.namespace.audit import read_deeds
from qworker.engine.raw import raw
from qworker.web import OPERATE, VIEW, Access
from qworker.web.application import Dashboard
from qworker.wire.codec import encode_call
from tests.cli.conftest import Shop
from tests.tables import each
from tests.topologies.servers import until
from tests.web.conftest import Browser, Document, text_of

PAGE = "/queues/emails/dead"
REFUSED = "ConnectionError: no answer from 10.0.0.{} port {} after 'req-{}'"


def question(browser: Browser, verb: str, **query: str) -> dict[str, str]:
    """Ask for a change; returns the form of the question."""
    path = "&".join(f"{name}={value}" for name, value in query.items())
    document = Document(browser.get(f"{PAGE}/{verb}?{path}").text)
    return {one["name"]: one["value"] for one in document.all("input") if one["type"] == "hidden"}


def outcomes(shop: Shop) -> list[str]:
    """The audit trail, the oldest first."""
    deeds = read_deeds(shop.client.execute, shop.namespace)
    return [f"{deed.verb} {deed.target}: {deed.outcome}" for deed in reversed(deeds)]


@each(
    "one, other, same",
    [
        (("E", "no user 17"), ("E", "no user 9,300"), False),
        (("E", "no user 17"), ("E", "no user 93"), True),
        (("E", "key 'a' is missing"), ("E", "key 'bcd' is missing"), True),
        (("E", "at 0x7f3a2c"), ("E", "at 0x11"), True),
        (("E", "order 3f2504e0-4f89-11d3"), ("E", "order 99aa04e0-0000-11d3"), True),
        (("E", "10.0.0.1:80 refused"), ("E", "10.12.0.9:8080 refused"), True),
        (("E", "no user"), ("F", "no user"), False),
        (("E", "refused"), ("E", "reset"), False),
        (("E", "Traceback\n  File x, line 3\nE: gone 1"), ("E", "Traceback\n  File y, line 4\nE: gone 2"), True),
    ],
)  # fmt: skip
def test_a_fingerprint_is_equal_for_errors_that_differ_in_what_they_quote(
    one: tuple[str, str], other: tuple[str, str], same: bool
) -> None:
    """Numbers, ids, addresses and quoted text; never the class or other words, nor task and reason."""

    def letter(pair: tuple[str, str], task: str = "t", reason: str = "r") -> Any:
        message = SimpleNamespace(task=task)
        return SimpleNamespace(error_class=pair[0], error=pair[1], message=message, reason=reason)

    assert (fingerprint(letter(one)) == fingerprint(letter(other))) == same
    assert fingerprint(letter(one)) != fingerprint(letter(one, task="u"))
    assert fingerprint(letter(one)) != fingerprint(letter(one, reason="s"))
    assert re.fullmatch("[0-9a-f]{10}", fingerprint(letter(one)))
    assert error_pattern(letter(("E", "'a' 5"))) == "E: … #"


def test_dead_letters_are_grouped_by_their_error_and_found_by_the_url(
    browser: Browser, shop: Shop
) -> None:
    """The kind that died last comes first; a link to a kind is a filter, and goes to a colleague as it is."""
    shop.bury(*[REFUSED.format(at, 8000 + at, at) for at in range(7)], "KeyError: 'id'")
    shop.bury("ValueError: x", task="other")

    page = browser.get(PAGE).text
    shown = Document(page).text

    assert (
        shown.index("ValueError: x other")
        < shown.index("KeyError: …")
        < shown.index("no answer from # port #")
    )
    link = re.search(r'href="([^"]+fingerprint=[0-9a-f]{10})">ConnectionError', page)
    assert link is not None
    assert "7 found" in text_of(browser, link[1])
    for query, number in (
        ("error=PORT 8003", 1),
        ("task=other", 1),
        ("reason=rejected", 9),
        ("newer_than=1h", 9),
        ("older_than=1h", 0),
        ("error=nothing", 0),
    ):
        assert f"{number} found" in text_of(browser, f"{PAGE}?{query}"), query
    assert '/dead" aria-label="9 dead letters of emails"' in browser.get("/").text
    assert "This queue has no dead letters" in text_of(browser, f"/queues/{empty(shop)}/dead")


def empty(shop: Shop) -> str:
    shop.send("calm")
    return "calm"


@pytest.mark.bad_input("dashboard: filters, entries and rates that make no sense")
def test_a_filter_that_makes_no_sense_is_refused(browser: Browser, shop: Shop) -> None:
    shop.bury("ValueError: x")
    for query in (
        "newer_than=soon",
        "older_than=-1h",
        "fingerprint=xyz",
        "after=x",
    ):
        assert browser.get(f"{PAGE}?{query}").status_code == 400, query
        if not query.startswith("after"):
            assert browser.get(f"{PAGE}/drop?{query}").status_code == 400, query
    assert browser.get(f"{PAGE}/redrive?rate=9/s").status_code == 400
    for entry, status in (
        ("x", 400),
        ("1-1", 404),
        ("1-1/5", 404),
        ("1-1/99", 400),
        ("9" * 30 + "-1", 400),
    ):
        assert browser.get(f"{PAGE}/{entry}").status_code == status, entry
        assert browser.get(f"{PAGE}/drop?entry={entry}").status_code == status, entry
    assert browser.get("/queues/nothing/dead").status_code == 404
    assert browser.get("/queues/nothing/dead/drop").status_code == 404


@pytest.mark.slow
def test_twelve_new_ones_are_found_among_thousands(browser: Browser, shop: Shop) -> None:
    """A page reads a bounded number, the newest first, and says so; older ones are a link away."""
    body = encode_call("send_email", [1], {})
    fields = (
        "reason",
        "max_receives",
        "class",
        "OSError",
        "envelope",
        b"q1 " + b"a" * 20 + b" 1 1 1 0 0\n" + body,
    )
    old = [
        raw("XADD", shop.keys().dead, f"{at}-1", *fields, "error", "disk full")
        for at in range(1, 5601)
    ]
    for first in range(0, len(old), 500):
        shop.client.execute_each(old[first : first + 500])
    shop.bury(*["ValueError: new"] * 12)

    page = browser.get(PAGE).text
    shown = Document(page).text

    assert re.search("among the newest 5,[0-9]{3} searched", shown)
    assert shown.index("ValueError: new") < shown.index("OSError: disk full")
    assert "12 found" in text_of(browser, f"{PAGE}?newer_than=1h")
    assert "among" not in text_of(browser, f"{PAGE}?newer_than=1h")
    deeper = re.search(r'href="([^"]+depth=50000[^"]*)"', page)
    assert deeper is not None
    assert "5,612 found" in text_of(browser, deeper[1])
    older = re.search(r'href="([^"]+)" rel="next"', browser.get(f"{PAGE}?error=disk").text)
    assert older is not None
    page = browser.get(older[1].replace("&amp;", "&")).text
    assert "/dead/5575-1" in page
    assert "/dead/5576-1" not in page
    assert "59 found" in text_of(browser, f"{PAGE}?after=60-1")
    assert "at least 12" not in text_of(browser, f"{PAGE}/redrive?newer_than=1h")


def test_a_change_is_asked_for_with_its_number_and_done_at_a_rate(
    browser: Browser, shop: Shop
) -> None:
    """Only those that the question has counted: what dies later is left alone. Both ends are in the audit trail."""
    shop.bury(*["ValueError: x"] * 7, *["KeyError: y"] * 2)
    asked = browser.get(f"{PAGE}/redrive?error=ValueError&rate=1000/s").text
    assert "This will redrive 7 dead letters of 9 in emails , at 1000/s" in Document(asked).text
    form = question(browser, "redrive", error="ValueError", rate="1000/s")
    until(lambda: shop.now_ms() > int(form["at_ms"]))
    shop.bury("ValueError: later")

    started = browser.post(f"{PAGE}/redrive", form)

    assert started.status_code == 303
    assert "started at 1000/s: the question had counted 7" in text_of(
        browser, started.headers["location"]
    )
    until(lambda: len(outcomes(shop)) == 2)
    assert (
        outcomes(shop)[1] == "dead redrive emails --error ValueError: 7 dead letters redriven; done"
    )
    assert [one.error for one in shop.queue().dead(10)] == ["KeyError: y"] * 2 + [
        "ValueError: later"
    ]
    assert shop.queue().inspect().ready == 7
    assert "7 dead letters redriven; done" in text_of(browser, PAGE)
    again = browser.post(f"{PAGE}/redrive", form)
    assert (again.status_code, "was started already" in again.text) == (400, True)


@pytest.mark.slow
def test_a_change_at_a_rate_can_be_stopped(made: Callable[..., Dashboard], shop: Shop) -> None:
    """By its button; what was not reached is unchanged. The end of the process stops it too."""
    shop.bury(*["ValueError: x"] * 40)
    dashboard = made()
    browser = Browser(dashboard)
    browser.post(f"{PAGE}/redrive", question(browser, "redrive", rate="1/s"))
    until(lambda: shop.queue().inspect().ready)
    page = browser.get(PAGE).text
    assert '<progress max="40"' in page
    job = re.search(r'name="job" value="([^"]+)"', page)
    assert job is not None

    assert browser.post(f"{PAGE}/stop", {"job": job[1]}).status_code == 303

    until(lambda: len(outcomes(shop)) == 3)
    assert outcomes(shop)[2].endswith("redriven; stopped; the rest is unchanged")
    state = shop.queue().inspect()
    assert (state.ready + state.dead, state.dead > 30) == (40, True)
    browser.post(f"{PAGE}/redrive", question(browser, "redrive", rate="1/s"))
    until(lambda: shop.queue().inspect().ready > state.ready)
    dashboard.close()
    until(lambda: "stopped" in outcomes(shop)[-1])


def test_one_dead_letter_is_redriven_or_dropped(browser: Browser, shop: Shop) -> None:
    browser.application._jobs.undo_s = 0.0
    shop.bury("ValueError: x", "KeyError: y", "OSError: z")
    first, second, _ = (one.entry_id for one in shop.queue().dead(3))

    browser.post(f"{PAGE}/redrive", question(browser, "redrive", entry=first))
    browser.post(f"{PAGE}/drop", question(browser, "drop", entry=second))
    until(lambda: len(outcomes(shop)) == 3)
    browser.post(f"{PAGE}/drop", {"entry": second})

    drop = f"dead drop emails entry {second}"
    assert outcomes(shop) == [
        f"dead redrive emails entry {first}: 1 dead letter redriven",
        f"{drop}: begins in 0s, unless it is undone",
        f"{drop}: 1 dead letter dropped; done",
        f"{drop}: 0 dead letters dropped: it is foreign, or was redriven or dropped before",
    ]
    assert [one.error for one in shop.queue().dead(3)] == ["OSError: z"]
    assert browser.get(f"{PAGE}/{first}").status_code == 404


def test_a_drop_can_be_undone_until_it_begins(made: Callable[..., Dashboard], shop: Shop) -> None:
    """By its button, or because the dashboard ends; one and many; what is undone can be dropped later."""
    shop.bury("ValueError: x", "KeyError: y", "OSError: z")
    dashboard = made()
    dashboard._jobs.undo_s = 3_600.0
    browser = Browser(dashboard)
    first = shop.queue().dead(1)[0].entry_id

    def undo() -> str:
        [job] = re.findall(r'name="job" value="([^"]+)"><button>Undo<', browser.get(PAGE).text)
        answer = browser.post(f"{PAGE}/stop", {"job": job})
        return Document(browser.get(answer.headers["location"]).text).text

    browser.post(f"{PAGE}/drop", question(browser, "drop", entry=first))
    assert f"entry {first} by ada: nothing yet, begins in 1h00m" in text_of(browser, PAGE)
    refused = browser.post(f"{PAGE}/drop", {"entry": first})
    assert (refused.status_code, "was started already" in refused.text) == (400, True)
    assert "undone: nothing was dropped" in undo()
    browser.post(f"{PAGE}/drop", question(browser, "drop", error="KeyError"))
    assert "undone: nothing was dropped" in undo()
    assert shop.queue().inspect().dead == 3
    browser.post(f"{PAGE}/drop", question(browser, "drop"))
    dashboard.close()
    until(lambda: outcomes(shop)[-1] == "dead drop emails --all: undone: nothing was dropped")
    assert shop.queue().inspect().dead == 3


@pytest.mark.bad_input("dashboard: forms of questions that were changed")
def test_a_forged_question_changes_nothing(made: Callable[..., Dashboard], shop: Shop) -> None:
    """An empty form is not 'all of them', and a filter that is misspelt is not an empty one."""
    shop.bury(*["ValueError: x"] * 3)
    browser = Browser(made())
    good = question(browser, "drop")
    for changes in (
        {"at_ms": ""}, {"at_ms": "-1"}, {"at_ms": "x"}, {"shown": ""}, {"job": ""}, {"job": "../../etc"},
        {"job": "x" * 17}, {"newer_than": "soon"}, {"fingerprint": "zz"}, {"entry": "nonsense"},
    ):  # fmt: skip
        assert browser.post(f"{PAGE}/drop", {**good, **changes}).status_code == 400, changes
    assert browser.post(f"{PAGE}/redrive", {**good, "rate": "7/s"}).status_code == 400
    assert browser.post(f"{PAGE}/drop", {"x": "1"}).status_code == 400
    operator = Browser(made(authorize=lambda request: Access("eve", frozenset({VIEW, OPERATE}))))
    assert operator.post(f"{PAGE}/drop", good).status_code == 403
    assert "Drop" not in operator.get(PAGE).text
    assert shop.queue().inspect().dead == 3


@pytest.mark.slow
def test_a_dead_letter_of_any_shard_is_shown_and_changed(browser: Browser, shop: Shop) -> None:
    """Groups, lists and changes cover all shards of a divided queue."""
    shop.send("emails")
    shop.queue().divide(3)
    for _ in range(6):
        shop.bury(*["ValueError: x"] * 3)
    dead = shop.queue().dead(100)
    assert {one.entry.shard for one in dead} > {0}
    browser.application.sampler.refresh("emails")
    assert f"{len(dead)} found" in text_of(browser, PAGE)
    elsewhere = next(one for one in dead if one.entry.shard)
    ref = shop.queue().ref
    for behind, last in enumerate(sorted(one.entry for one in dead)):
        page = newest(ref, DeadFilter(), most_read=1000, after=last)
        assert len(shop.client.run(page).found) == behind
    assert elsewhere.message.id in text_of(browser, f"{PAGE}/{elsewhere.entry_id}")
    browser.application._jobs.undo_s = 0.0
    browser.post(f"{PAGE}/drop", question(browser, "drop", entry=elsewhere.entry_id))
    until(lambda: outcomes(shop)[-1].endswith("1 dead letter dropped; done"))
    browser.post(f"{PAGE}/drop", question(browser, "drop", error="ValueError"))
    until(lambda: not shop.queue().inspect().dead)
    until(lambda: outcomes(shop)[-1].endswith(f"{len(dead) - 1} dead letters dropped; done"))


@pytest.mark.slow
def test_a_body_is_shown_through_the_hook_of_the_application(
    made: Callable[..., Dashboard], shop: Shop
) -> None:
    """What the hook leaves out, or fails on, is on no page; bytes and long bodies are cut."""

    def redact(task: str, body: Any) -> Any:
        if isinstance(body, bytes):
            return body
        return {**body, "kwargs": {**body["kwargs"], "card": "hidden"}}

    queue = shop.queue()
    bodies = [
        encode_call("pay", [], {"card": "4111", "note": "n" * 20_000}),
        b"\x00\xff" * 400,
        b"[1, 2]",
        b"plain text",
    ]
    queue.send_many(bodies[:1] + bodies[2:3])
    for raw_body in (bodies[1], bodies[3]):
        queue.send(raw_body)
    for message in queue.receive(4):
        queue.bury(message, error="x")
    pay, array, binary, plain = (one.entry_id for one in queue.dead(4))
    browser, bare = Browser(made(redact=redact)), Browser(made())

    shown = text_of(browser, f"{PAGE}/{pay}")
    assert '"card": "hidden"' in shown
    assert "4111" not in shown
    assert "cut: these are 16,384 characters of 19.6 KiB. All of it: " in shown
    assert f"qworker dead show emails {pay} --json" in shown
    assert "not shown: the redaction hook has failed" in text_of(browser, f"{PAGE}/{array}")
    assert "4111" in text_of(bare, f"{PAGE}/{pay}")
    assert "800 B of binary data, cut at 512 bytes" in text_of(bare, f"{PAGE}/{binary}")
    assert "plain text" in text_of(bare, f"{PAGE}/{plain}")


def test_a_dead_letter_is_edited_and_redriven(made: Callable[..., Dashboard], shop: Shop) -> None:
    """What a form cannot hold, or the hook hides, is edited on the command line."""
    browser = Browser(made())
    shop.bury("ValueError: no such address", "ValueError: x")
    first, second = (letter.entry_id for letter in shop.queue().dead(2))

    page = browser.get(f"{PAGE}/edit?entry={first}").text
    assert "send_email" in page
    for body, status in (("{", 400), ("", 400), ('{"no": "call"}', 400), ("NaN", 400)):
        form = {"entry": first, "body": body}
        assert browser.post(f"{PAGE}/edit", form).status_code == status, body
    edited = {"task": "send_email", "args": ["grace@example.org"], "kwargs": {}}
    moved = browser.post(f"{PAGE}/edit", {"entry": first, "body": json.dumps(edited)})
    assert moved.status_code == 303
    assert "grace@example.org" in text_of(browser, moved.headers["location"])
    other = {"entry": first, "body": json.dumps({**edited, "args": []})}
    assert browser.post(f"{PAGE}/edit", other).status_code == 400
    again = {"entry": second, "body": json.dumps(edited), "redrive": "1"}
    assert browser.post(f"{PAGE}/edit", again).status_code == 303
    [ready] = shop.queue().peek(2)
    assert b"grace@example.org" in ready.body
    assert (shop.queue().inspect().dead, len(outcomes(shop))) == (1, 7)
    [left] = shop.queue().dead(1)
    hides = Browser(made(redact=lambda task, body: "hidden"))
    page = text_of(hides, f"{PAGE}/edit?entry={left.entry_id}")
    assert "the redaction hook hides a part of its body here" in page
    assert "grace@example.org" not in page
    form = {"entry": str(left.entry_id), "body": json.dumps(edited)}
    assert hides.post(f"{PAGE}/edit", form).status_code == 400
    assert [letter.entry_id for letter in shop.queue().dead(9)] == [left.entry_id]
    shop.queue().send_many([encode_call("send_email", ["x" * 20_000], {})])
    for message in shop.queue().receive(2):
        shop.queue().bury(message, error="x")
    assert "too long for a form" in text_of(
        browser, f"{PAGE}/edit?entry={shop.queue().dead(9)[-1].entry_id}"
    )
    assert browser.get(f"{PAGE}/edit?entry=1-1").status_code == 404
    assert browser.get(f"{PAGE}/edit").status_code == 400
