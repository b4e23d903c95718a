"""`python -m qworker`: the command line."""

import sys

from qworker.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
