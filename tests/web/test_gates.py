"""Every page of a shop at work, in a browser: readable by everyone, at any width, by day and by night."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qworker.web.application import _PAGES, Dashboard
from tests.cli.conftest import Shop
from tests.web.checkers import CUT, OVERLAPPING, WIDE, axe, check_html
from tests.web.exhibit import exhibit
from tests.web.test_browser import chromium, page, serving  # noqa: F401  fixtures

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.needs("playwright", "uvicorn"),
    pytest.mark.xdist_group("browser"),  # one Chromium for all
]
#: Widths and colours: where things are does not depend on the colours, and these not on the width.
LOOKS = [(1440, "light"), (320, "dark")]


def test_every_page_is_readable_by_everyone(
    made: Callable[..., Dashboard],
    shop: Shop,
    page: Any,  # noqa: F811
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Nothing overflows, overlaps or is cut; axe and the W3C's checker find nothing; the console is silent."""
    cache_dir = request.config.cache.mkdir("qworker-web-checkers")
    wrong: list[Any] = []
    backs: set[str] = set()
    with exhibit(shop, tmp_path) as paths, serving(made(), page) as port:
        for name, path in paths.items():
            answer = page.goto(f"http://127.0.0.1:{port}{path}")
            if answer.status != (404 if name == "missing" else 200):
                wrong.append((name, answer.status))
            (tmp_path / f"{name}.html").write_bytes(answer.body())
            for width, scheme in LOOKS:
                page.emulate_media(color_scheme=scheme)
                page.set_viewport_size({"width": width, "height": 800})
                for what in (WIDE, CUT, OVERLAPPING):
                    if found := page.evaluate(what):
                        wrong.append((name, width, scheme, found))
                if found := axe(page, cache_dir):
                    wrong.append((name, width, scheme, found))
            backs.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            page.emulate_media(color_scheme="light")
            backs.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            # An error of the browser itself.
            page.said = [one for one in page.said if "404" not in one]
    wrong += check_html([tmp_path / f"{name}.html" for name in paths], cache_dir)
    assert not wrong, "\n".join(map(str, wrong))
    assert len(backs) == 2  # by day and by night
    # A page that is added to the dashboard must be shown here.
    assert len(paths) >= len(_PAGES)
