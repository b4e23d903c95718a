"""The checks of `qworker doctor`: each yields findings, and none changes anything."""
