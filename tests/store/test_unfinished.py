"""A call whose script fails midway is reported as such and made once; other calls continue."""

from __future__ import annotations

import pytest

from qworker.engine.attempt import Attempt
from qworker.engine.extend import extend
from qworker.errors import InDoubtError, RetryRule, ServerError, UnfinishedError
from qworker.wire.keys import QueueKeys
from tests.lua.drive import deny, guarded


def test_a_send_that_fails_midway_is_made_once() -> None:
    """The message is already stored, and a retry would store it twice: the error has script and line."""
    with guarded() as drive:
        deny(drive, "hincrby", "llen")
        drive.send("a", lane="lane", sequence=1)  # only the last step, counting, fails
        deny(drive, "hset")
        with pytest.raises(UnfinishedError) as caught:
            drive.send("b", lane="lane", sequence=2)
        assert (caught.value.script, caught.value.retry) == ("send", RetryRule.NEVER)
        assert str(caught.value).startswith(
            f"script send failed midway, at line {caught.value.line}: part of the call may have run"
        )
        assert [item.split()[1] for item in drive.state("ready")["ready"]] == ["a", "b"]


def test_a_repetition_that_fails_midway_is_not_merely_in_doubt() -> None:
    """A call in doubt can be repeated; this one cannot."""
    attempt = Attempt(extend(QueueKeys("t", "orders"), ["L"], 1000), give_up_s=60)
    attempt.failed(InDoubtError("lost"))
    error = UnfinishedError("ERR no", 5)
    with pytest.raises(UnfinishedError) as caught:
        attempt.failed(error)
    assert caught.value is error
    assert (error.script, error.line) == ("extend", 5)
    assert isinstance(error, ServerError)
