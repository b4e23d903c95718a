"""The `qworker` command: one file per noun, put together in `main`."""
