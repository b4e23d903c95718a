"""Groups of calls in the dashboard: what each waits for, and how its calls have ended."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from qworker import QWorker, SyncRun, group
from qworker.client.namespace.audit import read_deeds
from qworker.testing import drain
from qworker.web.application import Dashboard
from tests.cli.conftest import Shop
from tests.web.conftest import Browser, Document, text_of


def start(shop: Shop, numbers: range, *, handled: bool = True) -> str:
    """Start a group whose call fails for 0, and handle its calls; returns its id."""
    app = QWorker(shop.namespace, url=shop.url)

    @app.task(queue="video", result="1h", max_receives=1)
    def halve(number: int) -> int:
        return 60 // number

    @app.task(queue="web", result="1h")
    def total(values: list[int]) -> int:
        return sum(values)

    calls = group([halve.call(number) for number in numbers], policy="successes")
    handle = calls.then(total).start()
    if handled:
        drain(app, errors="collect", include_delayed=False)
    app.close()
    return handle.id


def test_a_group_shows_how_its_calls_have_ended_and_what_it_waits_for(
    browser: Browser, shop: Shop
) -> None:
    group_id = start(shop, range(3))

    listed = text_of(browser, "/calls")
    assert re.search(rf"{re.escape(group_id)} blocked total in web 3 1 1 ", listed), listed
    page = browser.get(f"/calls/web/{group_id}").text
    assert "waits for 1 dead letter to be redriven" in page
    assert "; begins when every call has succeeded" in page
    lanes = page[page.index('class="lanes') :]
    ended = re.findall(r"<span class=\"pill [a-z]*\">(\w+)<", lanes)
    assert ended == ["dead", "done", "done"]
    assert f"{group_id}.0" in lanes
    shown = Document(lanes.replace(group_id, "")).text
    assert "ZeroDivisionError" in shown
    assert re.findall(r"(?<![\w-])[36]0(?![\w-])", shown) == ["60", "30"]


def test_a_group_that_was_only_started_is_open(browser: Browser, shop: Shop) -> None:
    """A large one is read in pages."""
    group_id = start(shop, range(1, 151), handled=False)
    page = browser.get(f"/calls/web/{group_id}").text
    assert "waits for 150 calls" in page
    assert page.count(">open<") == 100
    last = browser.get(f"/calls/web/{group_id}?page=2").text
    assert last.count(">open<") == 50
    assert f">{group_id}.149<" in last


def test_a_group_names_what_follows_and_is_abandoned_when_asked(
    made: Callable[..., Dashboard], shop: Shop
) -> None:
    """The callback's task; the question says how many calls it waits for. A second operator is told that it is over."""
    group_id = start(shop, range(3))
    browser, path = Browser(made()), f"/calls/web/{group_id}"
    assert "total in web" in text_of(browser, path)
    assert f"{group_id} blocked total in web 3 1 1" in text_of(browser, "/calls")
    asked = text_of(browser, f"{path}/abandon")
    assert "1 blocked group of web, which waits for 1 call: its callback is not sent" in asked
    assert "Abandon …" not in browser.get(f"{path}?embed=1").text

    ended = browser.post(f"{path}/abandon")

    assert ended.status_code == 303
    [deed] = read_deeds(shop.client.execute, shop.namespace, count=1)
    assert (deed.user, deed.verb, deed.target) == ("ada", "calls abandon", f"web {group_id}")
    assert shop.queue("web").calls() == []
    assert browser.post(f"{path}/abandon").status_code == 400
    assert browser.get(f"{path}/abandon").status_code == 404


def test_a_group_is_cancelled_with_its_calls(browser: Browser, shop: Shop) -> None:
    """The question says so; calls that wait are deleted, and the trail counts them."""
    path = f"/calls/web/{start(shop, range(1, 4), handled=False)}"
    assert "Waiting calls are deleted" in text_of(browser, f"{path}/cancel")
    assert browser.post(f"{path}/cancel").status_code == 303
    [deed] = read_deeds(shop.client.execute, shop.namespace, count=1)
    assert (deed.verb, deed.outcome.partition(",")[0]) == (
        "calls cancel",
        "cancelled: 3 messages waited",
    )
    assert shop.queue("video").inspect().ready == 0
    assert browser.get(f"{path}/cancel").status_code == 404
    assert browser.post("/calls/web/nothing/cancel").status_code == 400


def test_a_group_of_a_run_leads_to_it_and_back(browser: Browser, shop: Shop) -> None:
    """It has no callback; the run says which calls it waits for."""
    app = QWorker(shop.namespace, url=shop.url)

    @app.task(queue="video", result="1h")
    def halve(number: int) -> int:
        return number // 2

    @app.workflow(queue="web", result="1h")
    def halves(run: SyncRun, number: int) -> int:
        return len(run.gather([halve.call(number)] * 2, name="parts"))

    halves.options(id="halves-1").start(8)
    drain(app, queues=["web"])
    app.close()

    [group_id] = [one.id for one in shop.queue("web").calls()]
    assert f"{group_id} running run halves-1 in web 2 2 0" in text_of(browser, "/calls")
    page = browser.get(f"/calls/web/{group_id}").text
    assert 'href="/runs/web/halves-1"' in page
    assert "The run halves-1 continues" in page
    assert "Its callback" not in page
    assert f'href="/calls/web/{group_id}"' in browser.get("/runs/web/halves-1").text
    asked = text_of(browser, f"/calls/web/{group_id}/abandon")
    assert (
        "the run halves-1 continues, and its gather fails for the calls that have not ended"
        in asked
    )
    assert browser.post(f"/calls/web/{group_id}/abandon").status_code == 303
    assert shop.queue("web").inspect().ready == 1


def test_values_pass_the_hook(made: Callable[..., Dashboard], shop: Shop) -> None:
    """It cannot decide on a value whose task is not known, so that is not shown."""
    group_id = start(shop, range(3))
    hides = Browser(made(redact=lambda task, value: value))
    page = hides.get(f"/calls/web/{group_id}").text
    # Ids are random, and may contain the value.
    shown = Document(page[page.index('class="lanes') :].replace(group_id, "")).text
    assert re.search(r"(?<![\w-])30(?![\w-])", shown) is None
    assert "cannot decide" in page


@pytest.mark.bad_input("dashboard: groups of calls that do not exist")
def test_an_unknown_group_has_a_page_that_says_so(browser: Browser, shop: Shop) -> None:
    shop.send()
    for path in (
        "/calls/emails/nothing",
        "/calls/nothing/x",
        "/calls/emails/%00",
        "/calls/emails/<b>",
    ):
        assert browser.get(path).status_code == 404, path
    assert "No group waits" in text_of(browser, "/calls")
