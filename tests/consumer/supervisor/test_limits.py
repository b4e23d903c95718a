"""Which children are ended for their memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from qworker.consumer.supervisor.limits import LimitEnforcer


@pytest.mark.parametrize(
    ("handled", "running", "reason", "said"),
    [
        (0, [], "", "max_rss_too_small"),
        (0, ["one"], "rss", "child_too_large"),
        (1, [], "rss", "child_too_large"),
    ],
    ids=["before its first message", "in its first handler", "after it"],
)
def test_a_child_that_outgrew_the_limit_by_its_messages_is_replaced(
    handled: int, running: list[str], reason: str, said: str
) -> None:
    """One that was too large before is kept, as the next one would be no smaller."""
    stopped: list[str] = []
    child: Any = SimpleNamespace(
        overdue_handlers=tuple,
        stopping="",
        starting=False,
        started=0.0,
        noted=set[str](),
        pid=7,
        board=SimpleNamespace(handled=handled, running=SimpleNamespace(views=lambda: running)),
        stop=stopped.append,
    )
    watch: Any = SimpleNamespace(is_too_large=lambda _: 2**30, silent_s=lambda *_: 0.0)
    leases: Any = SimpleNamespace(answering_since=0.0, recall=lambda children: None)
    with capture_logs() as lines:
        assert LimitEnforcer(watch, leases, None).enforce(child) == reason
    assert [line["event"] for line in lines] == [said]
    assert stopped == [reason] * bool(reason)
