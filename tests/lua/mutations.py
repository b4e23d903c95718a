"""Change the Lua scripts one line at a time and see whether the tests notice.

    python -m tests.lua.mutations                  # 100 changes drawn at random, the seed is printed
    python -m tests.lua.mutations --seed 7 --number 300
    python -m tests.lua.mutations --file lib/settle.lua --number 1000

Works on a copy of the tree in a temporary directory. Prints each change that no test noticed; such a survivor is
either a gap in the tests or a line that makes no difference (a chunk size, a short cut). Takes some seconds each.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ["tests/lua", "tests/model"]
#: What is replaced by what; every place in a line is one change.
SWAPS = [
    (" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " ~= "),
    (" ~= ", " == "), (" and ", " or "), (" or ", " and "), ("not ", ""), ("math.max", "math.min"),
    ("math.min", "math.max"), ("'LPUSH'", "'RPUSH'"), (" + 1", ""), (" - 1", ""), (" + ", " - "),
    (" - ", " + "), ("true", "false"), ("false", "true"), ("= 0", "= 1"), ("'0'", "'1'"),
]  # fmt: skip
_ENVIRONMENT = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "QWORKER_MODEL_EXAMPLES": "60",
    "QWORKER_MODEL_NO_SHRINK": "1",
}
#: Lines that may be left out without breaking the syntax.
STATEMENT = re.compile(
    r"\s*(redis\.p?call\(.*\)|[\w.\[\], '#+]+ = .*[^,{(]|if .* then .* end|for .* do .* end"
    r"|(bury|put|put_back|count|ring|add|move|free_unique\w*|table\.insert)\(.*\))\s*"
)


@dataclass(frozen=True)
class Change:
    """One line of one file, as it shall read."""

    file: str
    number: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}\n  - {self.before.strip()}\n  + {self.after.strip() or '(left out)'}"


def changes(folder: Path) -> Iterator[Change]:
    """Every change of every script under a folder."""
    for path in sorted(folder.rglob("*.lua")):
        file = str(path.relative_to(folder))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            code = line.partition("--")[0]
            if not code.strip():
                continue
            if STATEMENT.fullmatch(code) and not code.lstrip().startswith("local"):
                yield Change(file, number, line, "")
            for old, new in SWAPS:
                for match in re.finditer(re.escape(old), code):
                    after = code[: match.start()] + new + code[match.end() :]
                    yield Change(file, number, line, after)


def is_noticed(tree: Path, change: Change) -> bool:
    """Whether a test fails with the change in place."""
    path = tree / "qworker" / "lua" / change.file
    kept = path.read_text("utf-8")
    lines = kept.splitlines()
    lines[change.number - 1] = change.after
    path.write_text("\n".join(lines) + "\n", "utf-8")
    try:
        plugins = [
            "-p",
            "pytest_timeout",
            "-p",
            "xdist.plugin",
            "-p",
            "_hypothesis_pytestplugin",
            "-p",
            "no:cacheprovider",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "--timeout=60", *plugins, *TESTS],
            cwd=tree,
            env=os.environ | _ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=300,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(kept, "utf-8")
    return done.returncode != 0


def main() -> int:
    """Try changes; returns 1 where any was not noticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--file", default="")
    given = parser.parse_args()
    found = [each for each in changes(ROOT / "qworker" / "lua") if given.file in each.file]
    random.Random(given.seed).shuffle(found)
    chosen = found[: given.number]
    print(f"{len(chosen)} of {len(found)} changes, seed {given.seed}", flush=True)
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="qworker-mutations-") as place:
        tree = Path(place)
        for name in ("qworker", "tests"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        for change in chosen:
            if not is_noticed(tree, change):
                survivors += 1
                print(change, flush=True)
    print(f"{survivors} of {len(chosen)} were not noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
