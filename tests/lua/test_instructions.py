"""What Lua executes for a message alone and for batches of groups: what scripts save stays saved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qworker.engine.attributes import configure
from qworker.engine.effects import push_effect, result_effect
from qworker.engine.groups import COUNTING, set_limit
from qworker.engine.journal_groups import acked_groups
from qworker.engine.options import QueueAttributes, SendOptions
from qworker.engine.receive import settle_receive
from qworker.engine.send import NewMessage, send
from qworker.engine.settle import Outcomes, settle
from qworker.wire.envelope import tail
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.lua.instructions import Counter

NONE = SendOptions()

#: Instructions per call. Lower them with what a change saves.
ALLOWED = {"send": 195, "receive": 387, "ack": 232, "ack and receive": 396}
#: Instructions and commands of a receive of 100 messages of three priorities, and of one. A message is checked in 17
#: instructions that call four functions of C, which take the server half of what one call with a pattern takes.
ALLOWED_OF_LEVELS = {"973": (4630, 19), "7": (4500, 15)}
#: Of a call with a batch of 100, in a queue with a journal: of its send, and of an ack with the next receive.
ALLOWED_OF_JOURNALS = {
    "off": ((1914, 7), (4572, 16)),
    "outcomes": ((1914, 7), (5030, 21)),
    "all": ((4713, 12), (5695, 21)),
}
#: Instructions and commands of a call with a batch of 100 members of groups, by how many groups they are of;
#: with room for one more function of the script, not for one more step per message.
ALLOWED_OF_GROUPS = {
    "receive, a group each": (6_500, 31),
    "ack, a group each": (600, 11),
    "receive, many groups": (19_700, 123),
    "ack, many groups": (600, 11),
    "receive, ten groups": (33_200, 88),
    "ack, ten groups": (4_400, 23),
    "receive, groups of ten parents": (76_500, 240),
    "ack, groups of ten parents": (26_700, 50),
}
#: Of a call with one member: of its send, of a receive, and of an ack with the next receive.
ALLOWED_OF_A_MEMBER = ((640, 13), (1_390, 25), (1_445, 28))
#: Instructions and commands of a call that receives 100 messages and acks 100, each with the next step of its chain;
#: and of one that acks them with results.
ALLOWED_OF_EFFECTS = {"push": (72_700, 39), "result": (64_500, 235)}

#: Of a call that sets the first limit of a queue, or lets groups look at limits.
ALLOWED_OF_LIMIT = (60_000, 25)


@pytest.fixture(scope="module")
def counter() -> Iterator[Counter]:
    """Counts on a server without other clients; each test has a queue of its own."""
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
        settle_receive(keys, "a3", 1, outcomes=done, caller="host:1")
    )
    assert (len(batch.items), batch.settled) == (1, (1,))
    dearer = {name: count for name, count in taken.items() if count > ALLOWED[name]}
    assert dearer == {}, f"of {taken}"


@pytest.mark.parametrize("levels", ["973", "7"])
def test_a_batch_of_priorities(counter: Counter, namespace: str, levels: str) -> None:
    """Of several it costs little more than of one: it takes the short way, too."""
    keys = QueueKeys(namespace, "q")
    for level in levels:
        number = 180 // len(levels)
        messages = [NewMessage(f"m{level}{at:03}", tail(b"{}")) for at in range(number)]
        sending = send(keys, messages, lane="a", sequence=10 - int(level), priority=int(level))
        counter.run(sending)
    counter.run(settle_receive(keys, "a1", 1))
    count, batch = counter.run(settle_receive(keys, "a2", 100))
    assert len(batch.items) == 100
    taken = (count, counter.calls)
    most = ALLOWED_OF_LEVELS[levels]
    assert all(one <= allowed for one, allowed in zip(taken, most, strict=True)), taken


@pytest.mark.parametrize("mode", ALLOWED_OF_JOURNALS)
def test_a_batch_with_a_journal(counter: Counter, namespace: str, mode: str) -> None:
    """It takes the short way, and writes the events of the call in one entry."""
    keys = QueueKeys(namespace, "q")
    attributes = QueueAttributes(journal=mode, visibility=30)
    counter.run(configure(keys, attributes.meta()))
    for sequence in range(1, 5):
        messages = [NewMessage(f"m{sequence}-{at:03}", tail(b"{}")) for at in range(100)]
        sent, _ = counter.run(send(keys, messages, lane="a", sequence=sequence))
    of_send = sent, counter.calls
    _, batch = counter.run(settle_receive(keys, "a0", 100))
    for lease_id in ("a1", "a2"):  # the first ack begins the journal
        done = Outcomes(batch.lease_id, ack_all=True)
        if batch.journal:
            heads = [item[: item.index(b"\n") + 1] for item in batch.items]
            done.groups += acked_groups(batch.now_ms, "task", heads, [0.5] * 100, [0.5] * 100)
        received, batch = counter.run(
            settle_receive(keys, lease_id, 100, outcomes=[done], caller="host:1")
        )
        assert (batch.settled, batch.journal) == ((100,), mode != "off")
    taken = of_send, (received, counter.calls)
    for one, allowed in zip(taken, ALLOWED_OF_JOURNALS[mode], strict=True):
        assert all(each <= most for each, most in zip(one, allowed, strict=True)), taken


@pytest.mark.slow
def test_batches_of_groups(counter: Counter, namespace: str) -> None:
    """A hundred at a time, of a hundred groups and of few: their receive, and their ack."""
    spreads = {
        "a group each": [f"g{number}" for number in range(300)],
        "many groups": [f"g{number}" for number in range(100)] * 3,
        "ten groups": [f"g{number}" for number in range(10)] * 30,
        "groups of ten parents": [f"p{number % 10}/g{number % 50}" for number in range(300)],
    }
    taken: dict[str, tuple[int, int]] = {}
    for at, (name, groups) in enumerate(spreads.items()):
        keys = QueueKeys(namespace, f"q{at}")
        messages = [
            NewMessage(f"m{number:05}", tail(b"{}", {"g": group}), group=group)
            for number, group in enumerate(groups)
        ]
        counter.run(send(keys, messages, lane="a", sequence=1))
        for lease_id in ("a1", "a2"):  # the first one makes keys
            count, batch = counter.run(settle_receive(keys, lease_id, 100))
            assert len(batch.items) == 100
            taken[f"receive, {name}"] = (count, counter.calls)
        for lease_id in ("a1", "a2"):
            count, settled = counter.run(settle(keys, [Outcomes(lease_id, ack_all=True)]))
            assert settled.per_lease == (100,)
            taken[f"ack, {name}"] = (count, counter.calls)
    dearer = {
        name: each
        for name, each in taken.items()
        if any(one > most for one, most in zip(each, ALLOWED_OF_GROUPS[name], strict=True))
    }
    assert dearer == {}, f"of {taken}"


def test_a_member_alone(counter: Counter, namespace: str) -> None:
    """It takes the short way, from many groups and from few, and its ack frees its slot there."""
    for at, groups in enumerate((40, 2)):
        keys = QueueKeys(namespace, f"q{at}")
        messages = [
            NewMessage(f"m{number:02}", tail(b"{}", {"g": group}), group=group)
            for number, group in enumerate([f"g{number % groups}" for number in range(40)])
        ]
        counter.run(send(keys, messages, lane="a", sequence=1))
        more = NewMessage("m40", tail(b"{}", {"g": "g1"}), group="g1")
        sent, _ = counter.run(send(keys, [more], lane="a", sequence=2))
        taken = [(sent, counter.calls)]
        counter.run(settle_receive(keys, "a0", 1))  # which makes keys
        received, batch = counter.run(settle_receive(keys, "a1", 1))
        taken.append((received, counter.calls))
        done = [Outcomes("a1", acks=["0"])]
        acked, batch = counter.run(settle_receive(keys, "a2", 1, outcomes=done, caller="host:1"))
        taken.append((acked, counter.calls))
        assert (len(batch.items), batch.settled, batch.has_groups) == (1, (1,), True)
        for one, allowed in zip(taken, ALLOWED_OF_A_MEMBER, strict=True):
            assert all(each <= most for each, most in zip(one, allowed, strict=True)), taken


@pytest.mark.slow
def test_the_first_limit(counter: Counter, namespace: str) -> None:
    """Of 1,500 messages in flight each call counts a part, or lets as many groups look at the limit."""
    keys = QueueKeys(namespace, "q")
    names = [f"g{number}" for number in range(1500)]
    messages = [NewMessage(f"m-{name}", tail(b"{}", {"g": name}), group=name) for name in names]
    for part in range(0, 1500, 500):
        counter.run(send(keys, messages[part : part + 500], lane="a", sequence=part + 1))
        counter.run(settle_receive(keys, f"a{part}", 500))
    taken, cursor = [], COUNTING
    while cursor != "0":
        new = ("*", "c=3") if cursor == COUNTING else ("", "", cursor)
        count, cursor = counter.run(set_limit(keys, *new))
        taken.append((count, counter.calls))
    assert len(taken) == 12
    for one, most in zip(map(max, zip(*taken, strict=True)), ALLOWED_OF_LIMIT, strict=True):
        assert one <= most, taken


@pytest.mark.parametrize("name", ["push", "result"])
@pytest.mark.slow
def test_batches_with_effects(counter: Counter, namespace: str, name: str) -> None:
    """A step of a chain costs a few commands per call, none per message; a result takes two."""
    keys = QueueKeys(namespace, "q")
    flags = {"j": "-"} if name == "push" else {"r": "1000"}
    messages = [NewMessage(f"m{number:03}", tail(b"{}", flags)) for number in range(300)]
    counter.run(send(keys, messages, lane="a", sequence=1))
    counter.run(settle_receive(keys, "a0", 100))
    for number in (1, 2):  # the first one makes keys
        done = Outcomes(f"a{number - 1}")
        for index in range(1, 101):
            following = NewMessage(f"n{number}-{index:03}", tail(b"{}", flags))
            effects = {
                "push": push_effect(following, NONE),
                "result": result_effect(b"ok\n1", 1000),
            }
            done.ack_with(index, [effects[name]])
        count, batch = counter.run(
            settle_receive(keys, f"a{number}", 100, outcomes=[done], caller="host:1")
        )
        assert (len(batch.items), batch.settled) == (100, (100,))
    taken = (count, counter.calls)
    most = ALLOWED_OF_EFFECTS[name]
    assert all(one <= allowed for one, allowed in zip(taken, most, strict=True)), taken
