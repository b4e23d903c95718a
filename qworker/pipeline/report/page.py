"""The page: a document as one self-contained HTML file.

Plotly's script is in it, packed (1.9 MB instead of 4.8); every chart has its numbers as a table below it.
"""

from __future__ import annotations

import base64
import gzip
import importlib.util
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import SparkMissingError
from qworker.pipeline.report.charts import make_figures
from qworker.pipeline.report.figures import Document, ranked, summed
from qworker.pipeline.report.text import count, decimal, moment, percent, span, span_ms
from qworker.pipeline.report.theme import COLOURS, SERIES_COLOURS, TEMPLATE

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["check_charts", "render"]

#: What the page is made with.
_PACKAGES: Final = ("jinja2", "plotly")


def render(document: Mapping[str, Any]) -> str:
    """Write the page of a document, with rows or without."""
    figures = make_figures(document) if document["data"]["rows"] else {}
    return (
        _environment()
        .get_template("page.html")
        .render(report=document, charts={"template": TEMPLATE, "figures": figures})
    )


def check_charts() -> None:
    """Raise `SparkMissingError` if a package of the extra `report` is missing; before the work rather than after it."""
    for name in _PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise SparkMissingError(f"{name} is not installed; pip install 'qworker-redis[report]'")


def _environment() -> Environment:
    """Make the environment of the templates: everything is escaped, and an unknown name is an error."""
    check_charts()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("qworker.pipeline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.globals.update(
        colours=COLOURS,
        count=count,
        decimal=decimal,
        largest=largest,
        moment=moment,
        numeric=numeric,
        percent=percent,
        plotly=plotly,
        span=span,
        span_ms=span_ms,
        summed=summed,
    )
    return environment


def largest(document: Document, key: str) -> dict[str, list[float]]:
    """The series of the queues with most in them."""
    queues = document["queues"]
    return {name: queues[name][key] for name in ranked(document, key)[:SERIES_COLOURS]}


def numeric(titles: Iterable[str]) -> list[str]:
    """Mark titles of columns of numbers."""
    return [f">{title}" for title in titles]


def plotly() -> str:
    """Pack Plotly's script; without the time in the header, so that equal documents give equal pages."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode("ascii")
