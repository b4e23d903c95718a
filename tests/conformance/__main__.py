"""Run the conformance tests and print their table; with `--json FILE` it is written as JSON as well."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from tests.conformance.rows import Collector, Row


def main() -> int:
    """Return 0 where every row passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    parser.add_argument("--system", help="only the rows of this system")
    chosen = parser.parse_args()
    collector = Collector()
    arguments = ["-q", "-p", "no:cacheprovider", str(Path(__file__).parent)]
    code = pytest.main(arguments, plugins=[collector])
    rows = [row for row in collector.rows() if chosen.system in (None, row.system)]
    failed = sum(not row.passed for row in rows)
    _print(rows)
    sys.stdout.write(f"{len(rows) - failed} of {len(rows)} rows passed\n")
    if chosen.json is not None:
        document = {
            "rows": [
                {
                    "system": row.system,
                    "operation": row.operation,
                    "test": row.test,
                    "passed": row.passed,
                }
                for row in rows
            ],
            "passed": len(rows) - failed,
            "failed": failed,
        }
        chosen.json.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    return 1 if failed or not rows else int(code)


def _print(rows: list[Row]) -> None:
    widths = [max((len(getattr(row, name)) for row in rows), default=0) for name in _COLUMNS]
    for row in rows:
        cells = [getattr(row, name) for name in _COLUMNS]
        words = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        sys.stdout.write(f"{words}  {'passed' if row.passed else 'FAILED'}\n")


_COLUMNS = ("system", "operation", "test")

if __name__ == "__main__":
    sys.exit(main())
