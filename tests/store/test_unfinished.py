"""A call whose script fails in its middle: told as such, made once, and others go on."""

from __future__ import annotations

import pytest

from qworker.client.commands.command import Attempt
from qworker.client.commands.extending import extend
from qworker.errors import InDoubtError, RetryRule, ServerError, UnfinishedError
from qworker.wire.keys import QueueKeys
from tests.lua.drive import deny, guarded


def test_a_send_that_fails_in_its_middle_is_made_once() -> None:
    """The message is stored by then: a repetition would store it twice, so the caller is told, with script and line."""
    with guarded() as drive:
        deny(drive, "hincrby", "llen")
        drive.send("a", lane="lane", sequence=1)  # counting is the last thing, and no matter
        deny(drive, "hset")
        with pytest.raises(UnfinishedError) as caught:
            drive.send("b", lane="lane", sequence=2)
        assert (caught.value.script, caught.value.retry) == ("send", RetryRule.NEVER)
        assert str(caught.value).startswith(
            f"script send failed in its middle, at line {caught.value.line}: the call may have been done in part"
        )
        assert [item.split()[1] for item in drive.state("ready")["ready"]] == ["a", "b"]


def test_a_repetition_that_fails_in_its_middle_is_not_merely_in_doubt() -> None:
    """In doubt the identical call may be made again; this one may not."""
    attempt = Attempt(extend(QueueKeys("t", "orders"), ["L"], 1000), give_up_s=60)
    attempt.failed(InDoubtError("lost"))
    error = UnfinishedError("ERR no", 5)
    with pytest.raises(UnfinishedError) as caught:
        attempt.failed(error)
    assert caught.value is error
    assert (error.script, error.line) == ("extend", 5)
    assert isinstance(error, ServerError)
