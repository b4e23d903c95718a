"""The page of a report in Chromium, as wide as a telephone and a screen."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.pipeline.report import Scope, make_document, render
from tests.pipeline.forging import Journal, frame

pytestmark = [pytest.mark.browser, pytest.mark.needs("playwright", "plotly")]

QUEUES = 14
#: Elements that reach out of the window, or whose text is cut off. Not: closed tables, which are not shown; names in
#: legends, which are in these tables too.
CUT = """() => [...document.querySelectorAll('body *')].filter(e => {
  if (e.closest('details:not([open]) > :not(summary), svg, .legend')) return false;
  const box = e.getBoundingClientRect(), hides = getComputedStyle(e).overflowX !== 'visible';
  return box.width * box.height > 0
    && (box.left < 0 || box.right > innerWidth || (hides && e.scrollWidth > e.clientWidth));
}).map(e => e.outerHTML.slice(0, 100))"""
#: The charts whose legends are higher than what they draw.
MOSTLY_LEGEND = """() => [...document.querySelectorAll('.plot')]
  .filter(e => e.nextElementSibling.clientHeight > e.querySelector('.bglayer .bg').getBoundingClientRect().height + 50)
  .map(e => e.dataset.figure)"""


@pytest.fixture(scope="module")
def report(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a report of more queues and errors than charts name, with long names."""
    journals = []
    for number in range(QUEUES):
        journal = Journal(f"customers-of-the-north-{number:02}")
        for message in range(QUEUES - number):
            name = f"{number:02}{message:02}".ljust(20, "a")
            journal.write(name, f"sent@{message} delivered@{1000 + message} acked@{1500 + message}")
        error = f"shop.warehouse.deliveries.UnknownAddressOfCustomerError{number:02}"
        name = f"{number:02}dead".ljust(20, "b")
        journal.write(name, "sent@200 delivered@1200 dead@9200:rejected", error_class=error)
        journals.append(journal.sort())
    document = make_document(frame(spark, *journals), Scope("shop", "an archive"))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(document), "utf-8")
    return path.as_uri()


@pytest.mark.parametrize("width", [390, 1440])
def test_a_report_fits_a_telephone_and_a_screen(report: str, page: Any, width: int) -> None:
    """Nothing is wider than the window or cut off, so that dead letters can be read; charts are larger than legends."""
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(report)
    page.wait_for_selector("html[data-drawn=yes]", state="attached")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".stack code", has_text="dead redrive").count() == QUEUES
    assert page.evaluate(CUT) == []
    assert page.evaluate(MOSTLY_LEGEND) == []
