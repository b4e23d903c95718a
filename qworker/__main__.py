"""`python -m qworker`: the command line."""

from qworker.cli.main import main

if __name__ == "__main__":
    main()
