"""Checkers of pages from npm: axe-core for accessibility, the W3C's checker for HTML; and what overlaps or is cut."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.programs import program
from tests.servers import missing

__all__ = ["axe", "check_html", "misplaced"]

_PACKAGES: Final = ("axe-core@4.14.1", "vnu-jar@26.9.27")
_INSTALL_S: Final = 300
#: What axe finds, in a few words each.
_AXE: Final = """more => axe.run(document, {resultTypes: ['violations'], ...more}).then(found => found.violations.map(
  one => [one.id, one.nodes.slice(0, 3).map(node => node.html.slice(0, 120))]))"""
#: Which rules axe has: all; contrast alone, for other colours; for another width what an element is called, which may
#: be hidden there, and whether what scrolls there is reached by keys.
_RULES: Final[dict[str, dict[str, Any]]] = {
    "all": {},
    "contrast": {"runOnly": ["color-contrast"]},
    "narrow": {
        "runOnly": [
            *("scrollable-region-focusable", "button-name", "link-name", "label", "select-name"),
            *("input-button-name", "summary-name", "empty-heading", "svg-img-alt"),
        ]
    },
}
#: Pixels by which the page is wider than the window.
_WIDE: Final = "() => document.documentElement.scrollWidth - innerWidth"
#: Elements that reach out of the window, or whose text is cut off.
_CUT: Final = """() => [...document.querySelectorAll('body *')].filter(e => {
  if (e.closest('thead, .skip, svg')) return false;
  const box = e.getBoundingClientRect(), style = getComputedStyle(e);
  if (box.width === 0 || box.height === 0) return false;
  const hides = style.overflowX !== 'visible' && !['PRE', 'TEXTAREA', 'INPUT', 'SELECT'].includes(e.tagName);
  return (!e.closest('pre') && box.right > innerWidth + 1) || (hides && e.scrollWidth > e.clientWidth + 1);
}).map(e => e.outerHTML.slice(0, 100))"""
#: Pieces of text that lie on each other.
_OVERLAPPING: Final = """() => {
  const pieces = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    if (!node.data.trim() || node.parentElement.closest('thead, .skip, pre, svg, select, textarea, option')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects())
      if (box.width > 1 && box.height > 1) pieces.push([box, node]);
  }
  pieces.sort((a, b) => a[0].top - b[0].top);
  const found = [];
  pieces.forEach(([box, node], at) => {
    for (let other = at + 1; other < pieces.length && pieces[other][0].top < box.bottom - 3; other++) {
      const [b, n] = pieces[other];
      if (n !== node && b.left < box.right - 2 && b.right > box.left + 2)
        found.push(`${node.data.trim().slice(0, 40)} / ${n.data.trim().slice(0, 40)}`);
    }
  });
  return found;
}"""


@cache
def _home(cache_dir: Path) -> Path:
    """Install the packages once, in pytest's cache."""
    for name in ("node", "npm", "java"):
        program(name)
    digest = hashlib.sha256(repr(_PACKAGES).encode()).hexdigest()[:12]
    home = cache_dir / digest
    with (cache_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "ready").exists():
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            (home / "package.json").write_text("{}")
            quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
            done = subprocess.run(
                ["npm", "install", *quiet, *_PACKAGES],
                cwd=home,
                capture_output=True,
                text=True,
                timeout=_INSTALL_S,
                check=False,
            )
            if done.returncode:
                missing(f"npm install failed: {done.stderr[-500:]}")
            (home / "ready").touch()
    return home / "node_modules"


def misplaced(page: Any) -> dict[str, Any]:
    """Look for what is wider than the window, cut off, or lies on something else; returns what there is, by that."""
    looks = {"wide": _WIDE, "cut": _CUT, "overlapping": _OVERLAPPING}
    asked = ", ".join(f"{name}: ({look})()" for name, look in looks.items())
    found: dict[str, Any] = page.evaluate(f"() => ({{{asked}}})")
    return {name: what for name, what in found.items() if what}


def axe(page: Any, cache_dir: Path, rules: str = "all") -> list[Any]:
    """Check a page as it is shown now, by `_RULES[rules]`; returns the violations."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate((_home(cache_dir) / "axe-core" / "axe.min.js").read_text())
    violations: list[Any] = page.evaluate(_AXE, _RULES[rules])
    return violations


def check_html(files: Iterable[Path], cache_dir: Path) -> list[str]:
    """Check files by the W3C's checker; returns its errors and warnings."""
    jar = _home(cache_dir) / "vnu-jar" / "build" / "dist" / "vnu.jar"
    command = [
        "java",
        # One short run: code of the first compiler is good enough, and costs half as much to make.
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-Xss2m",
        "-jar",
        str(jar),
        "--format",
        "json",
        "--stdout",
        "--exit-zero-always",
    ]
    done = subprocess.run(
        [*command, *map(str, files)], capture_output=True, text=True, timeout=120, check=True
    )
    return [
        f"{Path(one['url']).name}: {one['message']} ({one.get('extract', '')[:120]})"
        for one in json.loads(done.stdout)["messages"]
    ]
