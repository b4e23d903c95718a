"""Writes docs/reference from the code: each page is a file of docs/templates with its {{ tokens }} filled in.

python -m docs.generate             write the pages
python -m docs.generate --check     name the stale ones; exit code 3 if there are any
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from docs import sections
from qworker.config import ClientOptions, DaemonOptions, LogOptions, RunOptions
from qworker.options import QueueAttributes, SendOptions

__all__ = ["REFERENCE", "main", "pages", "render"]

REFERENCE: Final = Path(__file__).parent / "reference"
_TEMPLATES: Final = Path(__file__).parent / "templates"
_NOTE: Final = "<!-- Written by `python -m docs.generate` from docs/templates and the code. -->\n\n"
_TOKEN: Final = re.compile(r"\{\{ (.+?) \}\}")

#: Token → what writes the text in its place.
SECTIONS: Final[dict[str, Callable[[], str]]] = {
    "commands": sections.commands,
    "queue metrics": sections.queue_metrics,
    "worker metrics": sections.worker_metrics,
    "reaper metrics": sections.reaper_metrics,
    "outcomes": sections.outcomes,
    "scripts": sections.scripts,
    "parts": sections.script_parts,
    "tree": sections.error_tree,
    "rules": sections.retry_rules,
    "errors": sections.error_list,
    **{
        each.__name__: partial(sections.options_table, each, command=True)
        for each in (ClientOptions, LogOptions, RunOptions, DaemonOptions)
    },
    **{
        each.__name__: partial(sections.options_table, each, command=False)
        for each in (QueueAttributes, SendOptions)
    },
}


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with --check name those that are stale. Returns the exit code."""
    stale = [name for name in pages() if _read(REFERENCE / name) != render(name)]
    if "--check" in arguments:
        for name in stale:
            sys.stderr.write(f"docs/reference/{name} is stale: run python -m docs.generate\n")
        return 3 if stale else 0
    REFERENCE.mkdir(exist_ok=True)
    for name in stale:
        (REFERENCE / name).write_text(render(name), encoding="utf-8")
        sys.stderr.write(f"wrote docs/reference/{name}\n")
    return 0


def pages() -> list[str]:
    """Name the pages."""
    return sorted(path.name for path in _TEMPLATES.glob("*.md"))


def render(name: str) -> str:
    """Return the text of a page."""
    template = (_TEMPLATES / name).read_text("utf-8")
    return _NOTE + _TOKEN.sub(lambda match: SECTIONS[match[1]]().strip(), template)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
