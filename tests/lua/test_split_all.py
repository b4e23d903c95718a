"""split_all.lua: give messages of several leases a new visibility deadline, those of each lease in a new lease."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from qworker.engine.extend import split_all
from qworker.engine.settle import Outcomes
from qworker.errors import LeaseUsedError
from tests.lua.drive import NOW, Drive, own
from tests.lua.group_calls import EMPTY, get, idle, put


def extended(
    drive: Drive, leases: dict[str, tuple[str, Sequence[int]]], at: int = NOW
) -> list[int]:
    """Give messages 5 s from `at`; the deadline of each."""
    return drive.run(split_all(drive.keys, leases, 5000, now_ms=at))


def test_moves_messages_of_each_lease_to_a_new_one(engine_drive: Drive) -> None:
    """They keep their indices, and with them whom an expiry blames; what is left keeps its deadline."""
    drive = engine_drive
    drive.send("a", "b", "c", "d", "e", "f")
    drive.receive("L", 3)
    drive.receive("M", 2)
    drive.receive("A", 1)
    before = drive.state("stats", "wake")
    leases = {"L": ("X", [3, 1]), "M": ("Y", [1, 2]), "A": ("Z", [0])}
    assert extended(drive, leases, at=NOW + 10) == [NOW + 5010] * 5
    assert drive.state() == {
        **before,
        "lease:L": {"2": own("b")},
        "lease:X": {"1": own("a"), "3": own("c")},
        "lease:Y": {"1": own("d"), "2": own("e")},
        "lease:Z": {"0": own("f")},
        "unacked": {"L": NOW + 30_000, "X": NOW + 5010, "Y": NOW + 5010, "Z": NOW + 5010},
    }


def test_only_new_receipts_count(drive: Drive) -> None:
    """The old ones are stale; the new ones settle."""
    drive.send("a", "b")
    drive.receive("L")
    extended(drive, {"L": ("X", [1, 2])})
    assert drive.settle(Outcomes("L", acks=[1, 2])).counted == (False, False)
    assert drive.settle(Outcomes("X", acks=[1, 2])).counted == (True, True)
    assert drive.state("unacked") == {}


@pytest.mark.parametrize("groups", [("=a",), ("=a", "=b", "=c")])
def test_members_keep_their_slots(drive: Drive, groups: tuple[str, ...]) -> None:
    """The next one of an ordered group waits for the end of a message that was extended, alone or among others."""
    put(drive, *[f"{group}:{group[1:]}{number}" for number in range(2) for group in groups])
    first = [f"{group[1:]}0" for group in groups]
    assert get(drive, "L") == first
    indices = [0] if len(groups) == 1 else [1, 3]
    extended(drive, {"L": ("X", indices)})
    assert get(drive, "M") == []
    drive.settle(Outcomes("L", ack_all=True))
    moved = [groups[max(0, index - 1)][1:] for index in indices]
    left = [group[1:] for group in groups if group[1:] not in moved]
    assert get(drive, "N") == [f"{name}1" for name in left]
    drive.settle(Outcomes("X", acks=indices))
    assert get(drive, "O") == [f"{name}1" for name in moved]
    for lease in "NO":
        drive.settle(Outcomes(lease, ack_all=True))
    assert idle(drive) == EMPTY


def test_stale_receipts_are_reported_and_create_nothing(drive: Drive) -> None:
    """Where the lease or the message is gone the answer is 0; the others are extended."""
    drive.send("a", "b")
    drive.receive("L")
    drive.settle(Outcomes("L", acks=[1]))
    leases = {"gone": ("X", [1]), "L": ("Y", [1, 2, 3])}
    assert extended(drive, leases) == [0, 0, NOW + 5000, 0]
    assert drive.state("unacked", "lease:X", "lease:Y") == {
        "unacked": {"Y": NOW + 5000},
        "lease:Y": {"2": own("b")},
    }


def test_repeated_call_is_answered_again(drive: Drive) -> None:
    """One whose reply was lost finds its own work: what it held, what was stale, and the deadline of then."""
    drive.send("a", "b", "c", "d")
    drive.receive("L", 3)
    drive.receive("A", 1)
    drive.settle(Outcomes("L", acks=[1]))
    leases = {"L": ("X", [1, 2]), "A": ("Y", [0])}
    first = extended(drive, leases)
    before = drive.state()
    assert first == [0, NOW + 5000, NOW + 5000]
    assert extended(drive, leases, at=NOW + 99) == first
    assert drive.state() == before


def test_repeated_call_after_the_deadline_holds_nothing(drive: Drive) -> None:
    """What came back meanwhile belongs to another consumer."""
    drive.send("a", "b")
    drive.receive("L")
    leases: dict[str, tuple[str, list[int]]] = {"L": ("X", [1, 2])}
    extended(drive, leases)
    drive.redis.hset(drive.keys.stats, "reaped_ms", NOW + 4900)
    drive.call("reap", drive.standard_keys("X"), NOW + 5000, 1000)
    assert drive.state("unacked") == {}
    before = drive.state()
    assert extended(drive, leases, at=NOW + 5001) == [0, 0]
    assert drive.state() == before


@pytest.mark.parametrize(
    "leases",
    [
        {"L": ("N", [1])},
        {"L": ("N", [1, 2])},
        {"A": ("B", [0]), "L": ("N", [1])},
        {"gone": ("N", [1])},
        {"gone": ("N", [0, 1])},
    ],
)
def test_used_lease_id_is_refused(drive: Drive, leases: dict[str, tuple[str, list[int]]]) -> None:
    """A lease that holds anything else is not added to, and nothing of the call is done."""
    drive.send("a", "b", "c", "d", "e")
    drive.receive("L", 2)
    drive.receive("N", 2)
    drive.receive("A", 1)
    before = drive.state()
    used = [new for _, (new, _) in leases.items()][-1]
    with pytest.raises(LeaseUsedError, match=f"'{used}'"):
        extended(drive, leases)
    after = drive.state()
    # Each message has its own field now, which changes nothing.
    assert {**after, "lease:L": 0, "lease:N": 0} == {**before, "lease:L": 0, "lease:N": 0}


def test_plain_messages_keep_the_ids_of_their_delivery(drive: Drive) -> None:
    """A plain message is named by the lease that delivered it, also after it moved to another."""
    drive.redis.rpush(drive.keys.ready[0], '{"a": 1}', '{"a": 1}')
    drive.receive("L")
    extended(drive, {"L": ("N", [2, 1])}, at=NOW + 7)
    assert drive.state("lease:N", "lease:L") == {
        "lease:N": {
            "1": own("L.1", NOW + 7, body='{"a": 1}'),
            "2": own("L.2", NOW + 7, body='{"a": 1}'),
        },
    }


def test_the_most_of_one_call(drive: Drive) -> None:
    """64 leases, and 1,000 messages, none of which is twice in it."""
    drive.send(*(f"m{number}" for number in range(1000)))
    drive.receive("L", 937)
    for number in range(63):
        drive.receive(f"A{number}", 1)
    leases = {"L": ("X", list(range(1, 938)))}
    leases |= {f"A{number}": (f"B{number}", [0]) for number in range(63)}
    assert extended(drive, leases) == [NOW + 5000] * 1000
    assert set(drive.state("unacked")["unacked"]) == {"X", *(f"B{n}" for n in range(63))}
    assert len(drive.state("lease:X")["lease:X"]) == 937
