"""Commands as values: what to ask of Redis, how to read the answer, what to do when the answer is lost.

The sync and the async client execute the same values; nothing here does I/O.
"""

from qworker.client.commands.command import Attempt, Command

__all__ = ["Attempt", "Command"]
