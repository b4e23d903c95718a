"""What Lua executes for a message alone: the short ways of the scripts stay short."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qworker.engine.receive import settle_receive
from qworker.engine.send import NewMessage, send
from qworker.engine.settle import Outcomes, settle
from qworker.wire.envelope import tail
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.lua.instructions import Counter

#: Instructions per call. Lower them with what a change saves.
ALLOWED = {"send": 200, "receive": 364, "ack": 227, "ack and receive": 374}


@pytest.fixture
def counter() -> Iterator[Counter]:
    """Counts on a server without other clients."""
    with servers.start("valkey", far=False) as server, Counter(server) as counter:
        yield counter


def test_a_message_alone(counter: Counter, namespace: str) -> None:
    """Its send, its receive, its ack, and a worker's call that acks one and receives the next."""
    keys = QueueKeys(namespace, "q")
    taken: dict[str, int] = {}
    for number in range(1, 6):  # the first one of each kind makes the keys
        message = NewMessage(f"m{number}", tail(b"{}"))
        taken["send"], _ = counter.run(send(keys, [message], lane="a", sequence=number))
    for lease_id in ("a1", "a2"):
        taken["receive"], batch = counter.run(settle_receive(keys, lease_id, 1))
        assert len(batch.items) == 1
    taken["ack"], settled = counter.run(settle(keys, [Outcomes("a2", acks=["0"])]))
    assert settled.per_lease == (1,)
    done = [Outcomes("a1", acks=["0"])]
    taken["ack and receive"], batch = counter.run(
        settle_receive(keys, "a3", 1, outcomes=done, who="host:1")
    )
    assert (len(batch.items), batch.settled) == (1, (1,))
    dearer = {name: count for name, count in taken.items() if count > ALLOWED[name]}
    assert dearer == {}, f"of {taken}"
