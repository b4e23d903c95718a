"""Runs and chains as graphs: what ran side by side is drawn so, and what is waited for is named."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from qworker import QWorker, Run, chain, group
from qworker.client.inspect.runs import RunStep
from qworker.client.steps import ChainStep, MessageWriter, Past, past_of
from qworker.testing import drain
from qworker.web import Access, asgi
from qworker.web.pages.life import TimelineEntry
from qworker.web.pages.stages import Part, stages_of
from qworker.wire.keyring import Keyring
from tests.cli.conftest import Shop
from tests.web.conftest import Browser, Document


def arranged(*times: tuple[str, int, int]) -> list[list[list[str]]]:
    """Arrange parts by their names, beginnings and ends; returns the names in each lane of each stage."""

    def write(part: Part[str], before_ms: int, axis: tuple[int, int]) -> TimelineEntry:
        assert before_ms <= part.start_ms
        assert axis[0] <= part.start_ms <= part.end_ms <= axis[1]
        return TimelineEntry(part.of, part.end_ms, "")

    parts = [Part(start, end, name) for name, start, end in times]
    return [
        [[step.title for step in lane] for lane in stage.lanes]
        for stage in stages_of(parts, 0, 1_000, write)
    ]


def test_parts_that_overlap_are_side_by_side() -> None:
    assert arranged() == []
    assert arranged(("a", 0, 10), ("b", 10, 20)) == [[["a"]], [["b"]]]
    assert arranged(("a", 0, 10), ("b", 5, 20)) == [[["a"], ["b"]]]
    # Steps that took no time are one after the other.
    assert arranged(("a", 5, 5), ("b", 5, 5)) == [[["a"]], [["b"]]]


def test_a_part_follows_the_one_that_had_just_ended() -> None:
    found = arranged(
        ("read 0", 0, 10), ("read 1", 0, 30), ("store 0", 11, 15), ("store 1", 31, 40),
        ("other", 0, 50), ("end", 60, 61),
    )  # fmt: skip
    assert found == [
        [["read 0", "store 0"], ["read 1", "store 1"], ["other"]],
        [["end"]],
    ]


def test_steps_of_a_run_that_ran_at_once_are_drawn_side_by_side(
    browser: Browser, shop: Shop
) -> None:
    """A step says how long its function took, in Python and on the page."""
    app = QWorker(shop.namespace, url=shop.url)

    async def read(at: int) -> int:
        await asyncio.sleep(0.3)
        return at

    @app.workflow(queue="orders", result="1h")
    async def load(run: Run) -> int:
        await run.step("lock", lambda: "locked")
        parts = [run.step(f"read-{at}", read, at) for at in range(3)]
        total = sum(await asyncio.gather(*parts))
        await run.wait(int, name="publish")
        return total

    handle = load.options(id="load-1").start()
    drain(app, include_delayed=False)
    steps: list[RunStep] = handle.steps() or []
    lasted = {step.name: step.lasted_ms for step in steps}
    assert all(lasted[f"read-{at}"] >= 295 for at in range(3)), lasted  # a timer may be early
    app.close()

    page = browser.get("/runs/orders/load-1").text
    lanes = page[page.index('class="lanes"') : page.index("</ul>", page.index('class="lanes"'))]
    text = Document(page).text
    assert "3 steps side by side" in text
    assert lanes.count("<li>") == 3
    assert "lock" not in lanes
    assert re.search(r"read-0 .*took \d+ms", text)
    assert "Now waiting signal publish" in text


@pytest.mark.parametrize("keyed", [False, True])
def test_a_step_of_a_chain_shows_those_before_it(shop: Shop, keyed: bool) -> None:
    """When each was sent and ended, and how long its handler ran; a member leads to its group. Also if encrypted."""
    keys = Keyring(signing={"s": b"s" * 32}, encryption={"e": b"e" * 32}) if keyed else Keyring()
    app = QWorker(shop.namespace, url=shop.url, keys=keys)

    @app.task(queue="web", result="1h")
    def fetch(url: str) -> str:
        return url

    @app.task(queue="cpu", result="1h")
    def parse(page: str) -> str:
        return page

    @app.task(queue="disk", result="1h")
    def store(pages: list[Any]) -> int:
        return len(pages)

    steps = chain(fetch.call("x"), parse.then(), parse.options(delay="1h").then())
    started = group([steps, fetch.call("y")]).then(store).start()
    drain(app, include_delayed=False)
    [last] = app.queue("cpu").peek(10, state="delayed")
    dashboard = asgi(app, authorize=lambda _: Access("ada"))

    page = Browser(dashboard).get(f"/queues/cpu/messages/{last.id}").text
    dashboard.close()
    app.close()
    shown = Document(page).text
    times = r"sent \S+ \S+ \S+ · ended \S+ later(?: · its handler ran \S+)?"
    found = re.search(
        rf"Its chain fetch in web (\S+) {times} parse in cpu (\S+) {times} parse in cpu · this message Counted",
        shown,
    )
    assert found, shown
    assert found[1] == f"{started.id}.0"
    assert f'href="/queues/web/messages/{found[1]}"' in page
    assert f"Counted in a group of calls as number 0, in disk {started.id}" in shown
    assert f'href="/calls/disk/{started.id}"' in page
    assert "[" not in found[0]  # values are not kept


def test_a_large_step_does_not_name_those_before_it(shop: Shop) -> None:
    """A body that would be too large is sent without them; of a long chain it names the latest twenty."""
    before = [Past(f"t{at}", "q", "i", 1, 2) for at in range(60)]
    writer = MessageWriter(shop.namespace, Keyring())
    step = ChainStep(task="t", queue="q", id="i")

    def named(value: bytes) -> list[str]:
        body = writer.message(step, [], value, past=before).tail.partition(b"\n")[2]
        return [one.task for one in past_of(body)]

    assert named(b"1") == [f"t{at}" for at in range(40, 60)]
    assert named(b'"%s"' % (b"x" * 65_536)) == []


def test_a_step_of_a_chain_shows_those_that_follow(browser: Browser, shop: Shop) -> None:
    """With their queues and what each waits for; what is not a step shows no chain."""
    app = QWorker(shop.namespace, url=shop.url)

    @app.task(queue="web", result="1h")
    def fetch(url: str) -> str:
        return url

    @app.task(queue="cpu", result="1h")
    def parse(page: str) -> str:
        return page

    chain(fetch.call("x"), parse.then(), parse.options(delay="1h").then()).start()
    app.close()
    [first] = shop.queue("web").peek(10)

    text = Document(browser.get(f"/queues/web/messages/{first.id}").text).text
    assert re.search(r"Its chain fetch in web · this message parse in cpu \S+ waits", text), text
    assert "waits for the value of fetch" in text
    assert "waits for the value of parse, then for 1h" in text
    for body in (
        b'{"then": 7}',
        b'{"past": [["fetch"]]}',
        b'{"past": [["x", "q", "i", -1, 1e99]]}',
        b'{"then": [{"task": 1}]}',
        b"[1]",
        b"x",
    ):
        [sent] = shop.queue("web").send_many([body])
        assert "Its chain" not in browser.get(f"/queues/web/messages/{sent}").text
