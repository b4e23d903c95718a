"""The demo of a folder with two workers, as a process: `python -m tests.demo.program FOLDER [--json] [--keep]`."""

from __future__ import annotations

import sys

from qworker.demo import run_demo

if __name__ == "__main__":
    sys.exit(run_demo(sys.argv[1], json="--json" in sys.argv, procs=2, keep="--keep" in sys.argv))
