"""Trace context: the sender's W3C `traceparent` travels in the envelope.

It comes from OpenTelemetry if the application uses it; otherwise a message sent by a handler carries that of the
handler's own message.
"""

from __future__ import annotations

import sys
from typing import Final

from qworker.app.context import current

__all__ = ["outgoing"]

_HEADER: Final = "traceparent"


def outgoing() -> str | None:
    """Return the traceparent that a message sent here should carry, or None."""
    # Not imported here: that costs a tenth of a second.
    propagate = sys.modules.get("opentelemetry.propagate")
    if propagate is not None:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        if _HEADER in carrier:
            return carrier[_HEADER]
    context = current()
    return context.trace if context else None
