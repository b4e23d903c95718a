"""Groups and their limits on a page of their own."""

from __future__ import annotations

import pytest

from qworker.client.namespace.audit import read_deeds
from tests.cli.conftest import Shop
from tests.web.conftest import Browser, Document, text_of

PAGE = "/queues/emails/groups"


def test_the_largest_groups_come_first_with_what_each_waits_for(
    browser: Browser, shop: Shop
) -> None:
    """A slot, a rate, or the turn of the group; a message names its group."""
    queue = shop.queue()
    queue.set_limit("acme/*", concurrency=1)
    queue.set_limit("slow", rate="1/1h")
    acme = queue.send_many([{"a": 1}] * 5, group="acme/ann")
    queue.send_many([{"a": 1}] * 3, group="slow")
    queue.send({"a": 1}, group="calm", ordered=True)
    queue.receive(3)
    assert queue.receive(3) == []

    page = text_of(browser, PAGE)

    assert page.index("acme/ann") < page.index("slow") < page.index("calm (ordered)")
    assert "acme/ann 4 1 1 one of its 1 running" in page
    assert "slow 2 1 – its rate," in page
    assert "calm (ordered) 0 1 1 –" in page
    assert "group acme/ann" in text_of(browser, f"/queues/emails/messages/{acme[-1]}")
    assert "No message waits or runs in a group" in text_of(
        browser, f"/queues/{other(shop)}/groups"
    )


def test_the_wait_that_a_handler_asked_for_is_ended_as_on_the_command_line(
    browser: Browser, shop: Shop
) -> None:
    """The button names the group that waits; a second press says that it does not wait for that."""
    shop.rate_limit(group="acme/ann")
    shop.send(number=3, group="bob")
    [form] = [
        one for one in Document(browser.get(PAGE).text).all("form") if "/resume" in one["action"]
    ]
    assert (form["method"], form["action"]) == ("post", f"{PAGE}/resume")
    assert "acme/ann 1 0 – a handler's RateLimited, " in text_of(browser, PAGE)

    for outcome in ("resumed", "no handler's RateLimited makes it wait"):
        moved = browser.post(f"{PAGE}/resume", {"name": "acme/ann"})
        assert moved.status_code == 303
        assert outcome in text_of(browser, moved.headers["location"])

    assert f"{PAGE}/resume" not in browser.get(PAGE).text
    assert len(shop.queue().receive(5)) == 4
    refused = browser.post(f"{PAGE}/resume", {"name": "acme/*"})
    assert (refused.status_code, "is not the name of a group" in refused.text) == (400, True)


def other(shop: Shop) -> str:
    shop.send("calm")
    return "calm"


@pytest.mark.bad_input("dashboard: limits that make no sense")
@pytest.mark.slow
def test_limits_are_set_and_removed_as_on_the_command_line(browser: Browser, shop: Shop) -> None:
    """Empty fields stay, `none` removes one; a removal asks first."""
    shop.send()
    form = {"name": "crm/", "concurrency": "5", "rate": "100/s", "burst": "7"}
    form |= {"weight": "2.5", "max_waiting": ""}
    moved = browser.post(f"{PAGE}/set", form)
    assert moved.status_code == 303
    assert "crm/ 5 100/s 7 2.5 –" in text_of(browser, moved.headers["location"])
    assert browser.post(f"{PAGE}/set", {"name": "crm/", "rate": "none"}).status_code == 303
    assert shop.queue().limits()["crm/"].words == "c=5 w=2.5"
    for wrong in (
        {"name": "crm/"},
        {"name": "", "concurrency": "1"},
        {"name": "a/b/c", "concurrency": "1"},
        {"name": "a", "concurrency": "-1"},
        {"name": "a", "concurrency": "x"},
        {"name": "crm/", "concurrency": "0"},
        {"name": "a", "weight": "nan"},
        {"name": "crm/*", "weight": "2"},
        {"name": "crm/", "max_waiting": "2"},
        {"name": "a", "rate": "fast"},
        {"name": "a", "burst": "5"},
    ):
        assert browser.post(f"{PAGE}/set", wrong).status_code == 400, wrong
    assert "1 name of emails: concurrency 5, weight 2.5." in text_of(
        browser, f"{PAGE}/rm?name=crm/"
    )
    assert browser.post(f"{PAGE}/rm", {"name": "crm/"}).status_code == 303
    assert "No such limit" in text_of(browser, f"{PAGE}/rm?name=crm/", 404)
    assert shop.queue().limits() == {}
    verbs = [deed.verb for deed in read_deeds(shop.client.execute, shop.namespace)]
    assert verbs[0] == "limit rm"
    assert browser.get("/queues/nothing/groups").status_code == 404
