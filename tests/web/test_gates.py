"""A shop at work in a browser: every page for everyone, every action without JavaScript, while workers are killed."""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from qworker import QWorker
from qworker.client.execute.sync import Client
from qworker.client.namespace.audit import read_deeds
from qworker.store.connections import ConnectionFactory
from qworker.web import RIGHTS, Access, asgi
from qworker.web.actions.table import ACTIONS
from qworker.web.pages.table import PAGES
from tests.cli.conftest import Shop
from tests.topologies.servers import until
from tests.web.checkers import axe, check_html, misplaced
from tests.web.conftest import WAIT_MS, serving
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


class Open(NamedTuple):
    """The shop, the paths of its pages, and where its dashboard is."""

    shop: Shop
    paths: dict[str, str]
    url: str


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


def test_every_page_is_readable_by_everyone(
    opened: Open, page: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Nothing overflows, overlaps or is cut; axe and the W3C's checker find nothing; the console is silent."""
    cache_dir = request.config.cache.mkdir("qworker-web-checkers")
    wrong: list[Any] = []
    backs: set[str] = set()
    for name, path in opened.paths.items():
        answer = page.goto(opened.url + path)
        if answer.status != (404 if name == "missing" else 200):
            wrong.append((name, answer.status))
        (tmp_path / f"{name}.html").write_bytes(answer.body())
        for width, scheme, rules in LOOKS:
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


def test_every_action_is_done_without_javascript(opened: Open, chromium: Any) -> None:
    """By links and forms alone; each ends on a page that says what came of it, and asks first if it destroys."""
    context = chromium.new_context(java_script_enabled=False)
    context.set_default_timeout(WAIT_MS)
    page, queue = context.new_page(), opened.shop.queue("emails")
    worker = opened.paths["worker"]

    def go(path: str) -> None:
        page.goto(opened.url + path)

    def press(name: str, *, says: str = "", confirm: str = "") -> None:
        page.get_by_role("button", name=name, exact=True).first.click()
        if confirm:
            page.get_by_role("button", name=confirm).click()
        if says:
            assert says in page.locator(".notice").first.inner_text(), page.locator(
                "main"
            ).inner_text()

    go("/queues/emails")
    press("Pause receiving", says="paused out")
    press("Resume receiving", says="not paused")
    go("/queues/webhooks/groups")
    page.get_by_label("Name").fill("beta")
    page.get_by_label("Concurrency").fill("4")
    press("Set limits", says="concurrency 4")
    press("Remove the limits of beta", confirm="Remove these limits", says="limits removed")
    go("/schedules")
    press("Pause: nightly-report of reports", says="paused until it is resumed")
    press("Resume: nightly-report of reports", says="resumed from its next slot")
    press("Run now: nightly-report of reports", says="sent its message")
    press("Remove nightly-report of reports", confirm="Remove this schedule", says="removed")
    go("/workers")
    press("Resume charge_card", says="resumed")
    press("Pause send_email", says="paused")
    press("Resume send_email", says="resumed")
    go("/queues/emails/messages?state=delayed")
    page.locator("tbody th a").first.click()
    press("Hold", says="held")
    press("Enqueue now", says="enqueued")
    for verb in ("Delete", "Cancel"):
        go("/queues/emails/messages?state=delayed")
        page.locator("tbody th a").first.click()
        press(f"{verb} …", confirm=f"{verb} this message", says=f"{verb.lower()}")
    go("/runs/orders/order-13")
    press("Redrive: continue after the last step", says="redriven")
    go("/runs/orders/order-17")
    page.get_by_label("Value, as JSON").fill('"yes"')
    press("Give the signal", says="given the signal approval")
    entries = [letter.entry_id for letter in queue.dead(3)]
    go(f"/queues/emails/dead/{entries[0]}")
    press("Edit …")
    press("Save", says="edited: its entry is")
    go(f"/queues/emails/dead/{entries[1]}")
    press("Drop …", confirm="Drop 1 dead letter", says="unless it is undone")
    press("Undo", says="undone: nothing was dropped")
    go(f"/queues/emails/dead/{entries[2]}")
    press("Redrive …", confirm="Redrive 1 dead letter", says="1 dead letter redriven")
    go("/queues/emails/dead")
    press("Redrive …", confirm="Redrive", says="started at 10/s")
    press("Stop", says="asked to stop")
    go(opened.paths["group"])
    press("Abandon …", confirm="Abandon this group", says="ended; its calls continue to run")
    go(worker)
    press("Add a process", says="3 processes (was 2)")
    go(opened.paths["running"])
    press("Kill …", confirm="Cancel this message", says="was ended by")
    go(worker)
    press("Drain …")
    assert "A service manager" in page.locator("main").inner_text()
    context.close()
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
