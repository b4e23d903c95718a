"""What the systems that this one learned from can do, each operation shown by a test: `python -m tests.conformance`."""
