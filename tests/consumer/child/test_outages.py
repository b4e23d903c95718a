"""The log of a server that a child has lost."""

from __future__ import annotations

from qworker.consumer.child.outages import Outages
from qworker.errors import InDoubtError, UnavailableError


def test_a_lost_server_is_logged_with_the_cause(logs: list[dict[str, object]]) -> None:
    """A call in doubt is repeated by the worker, so its text for callers is left out."""
    in_doubt = InDoubtError("the call may have run; repeat only the identical call")
    in_doubt.__cause__ = ConnectionError("Connection closed by server.")
    Outages(None).lost(None, in_doubt)
    Outages(None).lost(None, UnavailableError("the server was not reached"))
    assert [(line["kind"], line["error"]) for line in logs if line["event"] == "server_lost"] == [
        (
            "InDoubtError",
            "the connection broke during a call, which is repeated (Connection closed by server.)",
        ),
        ("UnavailableError", "the server was not reached"),
    ]
