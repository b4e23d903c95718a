"""Tell which servers the tests run on; `python -m tests.engines` fails where CI=true and one is missing."""

from __future__ import annotations

import os
import sys

from tests import servers


def main() -> int:
    """Print a line per engine; returns the exit code."""
    binaries = dict(servers.engines())
    code = 0
    for engine in ("valkey", "redis"):
        if engine in binaries:
            print(f"engine {engine}: {binaries[engine]}")
        else:
            print(f"engine {engine}: not on this machine, its tests are skipped")
            code = 1 if os.environ.get("CI") == "true" else code
    return code


if __name__ == "__main__":
    sys.exit(main())
