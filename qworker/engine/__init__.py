"""Commands as values: the call, how to decode its reply, and how to repeat it if the reply is lost.

The sync and the async client execute the same values. No I/O here.
"""

from qworker.engine.command import Attempt, Command

__all__ = ["Attempt", "Command"]
