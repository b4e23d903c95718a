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
from qworker.app.options import TaskOptions
from qworker.consumer.options import RunOptions
from qworker.daemon.options import DaemonOptions
from qworker.engine.options import QueueAttributes, SendOptions
from qworker.engine.scripts import load_script
from qworker.pipeline.source.options import ReadOptions
from qworker.store.options import ClientOptions
from qworker.telemetry.options import LogOptions
from qworker.web.options import WebOptions
from qworker.wire.key_options import KeyOptions

__all__ = ["generated", "main"]

_DOCS: Final = Path(__file__).parent
#: Scripts that a producer or consumer in another language needs.
_PUBLISHED: Final = ("send", "settle_receive", "settle", "conclude", "extend", "split")
_NOTE: Final = "<!-- Written by `python -m docs.generate` from docs/templates and the code. -->\n\n"
#: A template may wrap its lines inside the braces.
_TOKEN: Final = re.compile(r"\{\{\s(.+?)\s\}\}")

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
    "spark tables": sections.spark_tables,
    "spark columns": sections.spark_columns,
    "ReadOptions": partial(sections.spark_options, ReadOptions),
    "KeyOptions": partial(sections.options_table, KeyOptions, command=True, flags=False),
    **{
        options.__name__: partial(sections.options_table, options, command=True)
        for options in (ClientOptions, LogOptions, RunOptions, DaemonOptions, WebOptions)
    },
    **{
        options.__name__: partial(sections.options_table, options, command=False)
        for options in (TaskOptions, QueueAttributes, SendOptions)
    },
}


def main(arguments: Sequence[str]) -> int:
    """Write the files, or with --check name those that are stale. Returns the exit code."""
    stale = [name for name, text in generated().items() if _read(_DOCS / name) != text]
    if "--check" in arguments:
        for name in stale:
            sys.stderr.write(f"docs/{name} is stale: run python -m docs.generate\n")
        return 3 if stale else 0
    for name in stale:
        (_DOCS / name).parent.mkdir(exist_ok=True)
        (_DOCS / name).write_text(generated()[name], encoding="utf-8")
        sys.stderr.write(f"wrote docs/{name}\n")
    return 0


def generated() -> dict[str, str]:
    """Return the generated files: path below docs → text."""
    pages = {
        f"reference/{path.name}": _NOTE
        + _TOKEN.sub(lambda match: SECTIONS[match[1]]().strip(), path.read_text("utf-8"))
        for path in sorted((_DOCS / "templates").glob("*.md"))
    }
    scripts = {f"scripts/{name}.lua": load_script(name).source.decode() for name in _PUBLISHED}
    return pages | scripts


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
