"""Templates: everything is escaped, and an unknown name is an error. Sparklines are drawn here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from qworker.formats import COMMAND, ago, count, moment, rate, safe, size, span
from qworker.monitor.history import HOUR_S

if TYPE_CHECKING:
    from qworker.monitor.history import Series

__all__ = ["ASSETS", "bars", "render", "sparkline", "stretches"]

#: File of `static/` → its type.
ASSETS: Final = {
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
    "htmx.min.js": "text/javascript",
    "hx-sse.min.js": "text/javascript",
    "cut-off.js": "text/javascript",
}
_WIDTH: Final = 120
_HEIGHT: Final = 24
_SPAN: Final = 600
#: A series that lasts less than this is drawn over this long: two points are not an hour.
_SHORTEST_S: Final = 120.0


def render(template: str, context: dict[str, Any], *, live: bool = False) -> str:
    """Write a page, or with `live` only the part that changes."""
    layout = "live.html" if live else "layout.html"
    return _environment().get_template(template).render(context, layout=layout)


@cache
def asset(name: str) -> bytes:
    """Read a static file of the package."""
    return (resources.files("qworker.web") / "static" / name).read_bytes()


@cache
def version(name: str) -> str:
    """Return a name for the contents of a static file, which changes with them."""
    return hashlib.sha256(asset(name)).hexdigest()[:12]


def commands(text: str) -> Markup:
    """Set the commands in a sentence in code."""
    parts: list[Markup] = []
    end = 0
    for match in COMMAND.finditer(text):
        parts += [escape(text[end : match.start()]), Markup("<code>%s</code>") % match[0]]
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])


def iso(instant_ms: int) -> str:
    """Write an instant for programs, in UTC; '' if no calendar has it."""
    try:
        return datetime.fromtimestamp(instant_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return ""


def sparkline(
    series: Series | None, name: str, write: Callable[[float], str] = lambda value: f"{value:,.0f}"
) -> Markup:
    """Draw the last hour of a figure as a small picture, which says its range in words too; nothing without points."""
    points = series.points() if series is not None else []
    if len(points) < 2:
        return Markup('<svg class="spark" viewBox="0 0 120 24" aria-hidden="true"></svg>')
    lasts_s = max(-points[0][0], _SHORTEST_S)
    values = [value for _, value in points]
    top = max(*values, 1e-9)
    line = " ".join(
        f"{_WIDTH * (1 + time_s / lasts_s):.1f},{(_HEIGHT - 2) * (1 - value / top) + 1:.1f}"
        for time_s, value in _thinned(points)
    )
    start = _WIDTH * (1 + points[0][0] / lasts_s)
    label = (
        f"{name} over the last {span(min(HOUR_S, -points[0][0]))}: "
        f"{write(min(values))} to {write(max(values))}"
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 120 24" preserveAspectRatio="none" role="img" aria-label="%s">'
        '<polygon points="%s,24 %s 120,24"></polygon><polyline points="%s"></polyline></svg>'
    ) % (label, f"{start:.1f}", line, line)


def bars(counts: Sequence[int], name: str, lasts_s: float) -> Markup:
    """Draw counts per part of a span that ends now, as a small picture, which says in words what it shows."""
    top, wide = max(*counts, 1), _WIDTH / len(counts)
    shapes = Markup("").join(
        Markup('<rect x="%s" y="%s" width="%s" height="%s"></rect>')
        % (f"{at * wide:.1f}", f"{_HEIGHT - tall:.1f}", f"{wide - 1:.1f}", f"{tall:.1f}")
        for at, count in enumerate(counts)
        if (tall := count and max(2.0, (_HEIGHT - 1) * count / top))
    )
    label = f"{name} over the last {span(lasts_s)}: up to {top:,} in {span(lasts_s / len(counts))}"
    return Markup(
        '<svg class="spark bars" viewBox="0 0 120 24" preserveAspectRatio="none" role="img" aria-label="%s">%s</svg>'
    ) % (label, shapes)


def stretches(
    parts: Sequence[tuple[float, float, str]], first: float, last: float, label: str
) -> Markup:
    """Draw stretches of time, each with its class, between two instants; `label` says in words what they show."""
    wide = _SPAN / max(last - first, 1)
    shapes = Markup("").join(
        Markup('<rect class="%s" x="%s" y="0" width="%s" height="8"></rect>')
        % (name, f"{begin:.1f}", f"{min(_SPAN - begin, max(2.0, (end - start) * wide)):.1f}")
        for start, end, name in parts
        if (begin := min(_SPAN - 2.0, max(0.0, (start - first) * wide))) >= 0
    )
    return Markup(
        '<svg class="stretch" viewBox="0 0 600 8" preserveAspectRatio="none" role="img" aria-label="%s">%s</svg>'
    ) % (safe(label), shapes)


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep the highest of neighbouring points, at most one per two pixels."""
    group = -(-len(points) // (_WIDTH // 2))
    return [
        max(points[first : first + group], key=lambda point: point[1])
        for first in range(0, len(points), group)
    ]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("qworker.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        commands=commands,
        count=count,
        iso=iso,
        moment=moment,
        plain=safe,
        rate=rate,
        size=size,
        span=span,
    )
    environment.globals.update(ago=ago, rate=rate, span=span, sparkline=sparkline, version=version)
    return environment
