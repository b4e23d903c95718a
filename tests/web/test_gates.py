"""A shop at work in a browser: every page for everyone, every action without JavaScript, while workers are killed."""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import pytest

from qworker import QWorker
from qworker.client.execute.sync import Client
from qworker.client.namespace.audit import read_deeds
from qworker.client.queue import Queue
from qworker.store.connections import ConnectionFactory
from qworker.web import RIGHTS, Access, asgi
from qworker.web.actions.table import ACTIONS
from qworker.web.pages.table import PAGES
from tests.browser import WAIT_MS
from tests.cli.conftest import Shop
from tests.topologies.servers import until
from tests.web.checkers import axe, check_html, misplaced
from tests.web.conftest import serving
from tests.web.exhibit import exhibit

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.needs("playwright", "uvicorn"),
    pytest.mark.xdist_group("browser"),  # one Chromium for all
]
#: Widths and colours, and what axe looks at: contrast does not depend on the width, nor anything else on colours.
LOOKS = [(1440, "light", "all"), (1440, "dark", "contrast"), (320, "light", "narrow")]
#: Pages for each way to show things, which are looked at by day, each in another look: figures, lists, forms, bodies,
#: steps, stacks and what is asked.
BY_DAY = (
    *("overview", "queue", "messages", "groups", "dead", "redrive"),
    *("schedules", "run", "message", "edit", "worker", "group"),
)


class Open(NamedTuple):
    """The shop, the paths of its pages, and where its dashboard is."""

    shop: Shop
    paths: dict[str, str]
    url: str


class Hand(NamedTuple):
    """What a user does on a page by links and forms alone."""

    page: Any
    url: str

    def go(self, path: str) -> None:
        """Open a page of the dashboard."""
        self.page.goto(self.url + path)

    def press(self, name: str, *, says: str = "", confirm: str = "") -> None:
        """Press a button, and one on the page that asks; `says`: what the page says at last."""
        self.page.get_by_role("button", name=name, exact=True).first.click()
        if confirm:
            self.page.get_by_role("button", name=confirm).click()
        if says:
            said = self.page.locator(".notice").first.inner_text()
            assert says in said, self.page.locator("main").inner_text()


@pytest.fixture(scope="module")
def opened(store_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """One shop for all tests of this file: the first one only looks."""
    namespace = f"t{uuid.uuid4().hex[:12]}"
    with Client(ConnectionFactory(store_url), give_up_s=20) as client:
        shop = Shop(client, namespace, store_url)
        app = QWorker(namespace, url=store_url)
        dashboard = asgi(app, authorize=lambda _: Access("ada", RIGHTS))
        with exhibit(shop, tmp_path_factory.mktemp("shop")) as paths, serving(dashboard) as port:
            yield Open(shop, paths, f"http://127.0.0.1:{port}")
        dashboard.close()


@pytest.mark.parametrize(
    "every",
    [
        False,
        pytest.param(True, marks=pytest.mark.nightly("test_every_page_is_readable_by_everyone")),
    ],
    ids=["some in a browser", "all"],
)
def test_every_page_is_readable_by_everyone(
    opened: Open, page: Any, tmp_path: Path, request: pytest.FixtureRequest, every: bool
) -> None:
    """Nothing overflows, overlaps or is cut; axe and the W3C's checker find nothing; the console is silent.

    Some pages in one look each, with all rules of axe, or all in every look; the HTML of all.
    """
    cache_dir = request.config.cache.mkdir("qworker-web-checkers")
    wrong: list[Any] = []
    backs: set[str] = set()
    looks = cycle([(width, scheme, "all") for width, scheme, _ in LOOKS])
    assert opened.paths.keys() >= {*BY_DAY}
    for name, path in opened.paths.items():
        answer = httpx.get(opened.url + path)
        if answer.status_code != (404 if name == "missing" else 200):
            wrong.append((name, answer.status_code))
        (tmp_path / f"{name}.html").write_bytes(answer.content)
        if not every and name not in BY_DAY:
            continue
        page.goto(opened.url + path)
        for width, scheme, rules in LOOKS if every else [next(looks)]:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 800})
            if elements := misplaced(page):
                wrong.append((name, width, scheme, elements))
            if found := axe(page, cache_dir, rules):
                wrong.append((name, width, scheme, found))
            backs.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.emulate_media(color_scheme="light")
        # Of the page that does not exist.
        page.said = [one for one in page.said if "404" not in one]
    page.goto("about:blank")
    wrong += check_html([tmp_path / f"{name}.html" for name in opened.paths], cache_dir)
    assert not wrong, "\n".join(map(str, wrong))
    assert len(backs) == 2  # by day and by night
    # A page that is added to the dashboard must be shown here.
    assert len(opened.paths) >= len(PAGES)


@pytest.fixture
def hand(opened: Open, chromium: Any) -> Iterator[Hand]:
    """A hand on a page without JavaScript."""
    context = chromium.new_context(java_script_enabled=False)
    context.set_default_timeout(WAIT_MS)
    yield Hand(context.new_page(), opened.url)
    context.close()


def pause_limit_and_drop(hand: Hand, queue: Queue) -> None:
    """Do what takes a button, fields, a question, a text, and what can be undone."""
    hand.go("/queues/emails")
    hand.press("Pause receiving", says="paused out")
    hand.press("Resume receiving", says="not paused")
    hand.go("/queues/webhooks/groups")
    hand.page.get_by_label("Name").fill("beta")
    hand.page.get_by_label("Concurrency").fill("4")
    hand.press("Set limits", says="concurrency 4")
    hand.press("Remove the limits of beta", confirm="Remove these limits", says="limits removed")
    edited, dropped = (letter.entry_id for letter in queue.dead(2))
    hand.go(f"/queues/emails/dead/{edited}")
    hand.press("Edit …")
    hand.press("Save", says="edited: its entry is")
    hand.go(f"/queues/emails/dead/{dropped}")
    hand.press("Drop …", confirm="Drop 1 dead letter", says="unless it is undone")
    hand.press("Undo", says="undone: nothing was dropped")


def test_actions_of_each_kind_are_done_without_javascript(opened: Open, hand: Hand) -> None:
    """By links and forms alone; each ends on a page that says what came of it, and asks first if it destroys."""
    pause_limit_and_drop(hand, opened.shop.queue("emails"))


@pytest.mark.nightly("test_actions_of_each_kind_are_done_without_javascript")
def test_every_action_is_done_without_javascript(opened: Open, hand: Hand) -> None:
    """As those of each kind are."""
    queue, worker = opened.shop.queue("emails"), opened.paths["worker"]
    pause_limit_and_drop(hand, queue)
    hand.go("/schedules")
    hand.press("Pause: nightly-report of reports", says="paused until it is resumed")
    hand.press("Resume: nightly-report of reports", says="resumed from its next slot")
    hand.press("Run now: nightly-report of reports", says="sent its message")
    hand.press("Remove nightly-report of reports", confirm="Remove this schedule", says="removed")
    hand.go("/workers")
    hand.press("Resume charge_card", says="resumed")
    hand.press("Pause send_email", says="paused")
    hand.press("Resume send_email", says="resumed")
    hand.go("/queues/emails/messages?state=delayed")
    hand.page.locator("tbody th a").first.click()
    hand.press("Hold", says="held")
    hand.press("Enqueue now", says="enqueued")
    for verb in ("Delete", "Cancel"):
        hand.go("/queues/emails/messages?state=delayed")
        hand.page.locator("tbody th a").first.click()
        hand.press(f"{verb} …", confirm=f"{verb} this message", says=f"{verb.lower()}")
    hand.go("/runs/orders/order-13")
    hand.press("Redrive: continue after the last step", says="redriven")
    hand.go("/runs/orders/order-17")
    hand.page.get_by_label("Value, as JSON").fill('"yes"')
    hand.press("Give the signal", says="given the signal approval")
    (letter,) = queue.dead(1)
    hand.go(f"/queues/emails/dead/{letter.entry_id}")
    hand.press("Redrive …", confirm="Redrive 1 dead letter", says="1 dead letter redriven")
    hand.go("/queues/emails/dead")
    hand.press("Redrive …", confirm="Redrive", says="started at 10/s")
    hand.press("Stop", says="asked to stop")
    hand.go(opened.paths["group"])
    hand.press("Abandon …", confirm="Abandon this group", says="ended; its calls continue to run")
    hand.go(worker)
    hand.press("Add a process", says="3 processes (was 2)")
    hand.go(opened.paths["running"])
    hand.press("Kill …", confirm="Cancel this message", says="was ended by")
    hand.go(worker)
    hand.press("Drain …")
    assert "A service manager" in hand.page.locator("main").inner_text()
    done = {
        deed.verb
        for deed in read_deeds(opened.shop.client.execute, opened.shop.namespace, count=99)
    }
    left = {action.verb for action in ACTIONS.values()} - done
    assert left == {"worker drain", "workflow cancel", "calls cancel"}  # in tests of their own


def test_a_page_follows_while_a_worker_is_killed(opened: Open, page: Any) -> None:
    """The process that takes the place of a killed one appears by itself, and the console is silent."""
    page.goto(opened.url + opened.paths["worker"].replace("&stacks=1", ""))
    page.wait_for_function("() => document.querySelector('#live')._htmx?.sse?.status === 200")

    def shown() -> list[str]:
        """The processes on the page, once it has forgotten those that an earlier test has ended."""
        pids = re.findall(r"pid (\d+)", page.locator("[aria-labelledby=processes]").inner_text())
        return pids if all(psutil.pid_exists(int(pid)) for pid in pids) else []

    before = until(shown)
    os.kill(int(before[0]), signal.SIGKILL)
    page.wait_for_function(
        "pid => ![...document.querySelectorAll('[aria-labelledby=processes] th')].some(e => e.innerText === pid)",
        arg=f"pid {before[0]}",
    )
    until(lambda: page.locator("[aria-labelledby=processes] tbody tr").count() == len(before))
    page.goto("about:blank")
