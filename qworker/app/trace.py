"""Trace context over the queue: the sender's W3C `traceparent` travels in the envelope.

Where OpenTelemetry is in use by the application it is asked; otherwise a message sent inside a handler carries on what
its own message carried.
"""

from __future__ import annotations

import sys
from typing import Final

from qworker.app.context import current

__all__ = ["outgoing"]

_HEADER: Final = "traceparent"


def outgoing() -> str | None:
    """Return the traceparent that a message sent here should carry, or None."""
    # Only if the application has imported it: its import costs a tenth of a second.
    propagate = sys.modules.get("opentelemetry.propagate")
    if propagate is not None:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        if _HEADER in carrier:
            return carrier[_HEADER]
    context = current()
    return context.trace if context else None
