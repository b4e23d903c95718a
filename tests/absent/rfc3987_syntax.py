"""Says of itself that it is not installed, to processes that have this folder in their path."""

raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)
