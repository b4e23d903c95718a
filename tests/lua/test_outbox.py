"""New messages as effects of acks (lib/effects.lua, lib/ends.lua), and how they are relayed (forward, accept)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from qworker.client.execute.sync import Client
from qworker.client.plan import run_plan
from qworker.client.relay import outboxes_of, relay
from qworker.daemon.reaper import Reaper
from qworker.engine.command import Command
from qworker.engine.effects import Effect, out_effect, push_effect, result_effect
from qworker.engine.options import SendOptions
from qworker.engine.outbox import Notice, OutboxMessage, OutboxPage, accept, forward, tell
from qworker.engine.send import NewMessage
from qworker.engine.settle import Outcomes
from qworker.errors import AccessDeniedError, QueueFullError, QueuePausedError, ServerError
from qworker.wire.envelope import tail
from qworker.wire.keys import QueueKeys
from tests.effort import examples
from tests.lua.drive import NOW, Drive, deny, guarded, own

NONE = SendOptions()


@pytest.fixture
def other(store_url: str, drive: Drive) -> Iterator[Drive]:
    """The destination."""
    destination = Drive(store_url, drive.namespace, "other")
    yield destination
    destination.close()


def new(message_id: str, flags: dict[str, str] | None = None) -> NewMessage:
    """A message whose body is its id."""
    return NewMessage(message_id, tail(message_id.encode(), flags))


def ack(drive: Drive, message_id: str, *effects: Effect, at: int = NOW) -> Any:
    """Send, receive and ack a message, with effects."""
    drive.send(message_id)
    drive.receive(f"L{message_id}", at=at)
    outcomes = Outcomes(f"L{message_id}")
    outcomes.ack_with(0, effects)
    return drive.settle(outcomes, at=at)


def out(message_id: str, **options: Any) -> Effect:
    """A message for the queue `other`."""
    return out_effect("other", new(message_id), SendOptions(**options))


def relayed(drive: Drive, at: int = NOW) -> dict[str, Any]:
    """Relay the outboxes; the problem of each destination that does not take its entries."""
    return run_plan(timed(drive, at), relay(drive.namespace, drive.keys))


def timed(drive: Drive, at: int = NOW) -> Callable[[Command[Any]], Any]:
    """Run scripts at this time."""

    def run(command: Command[Any]) -> Any:
        if command.script is not None:
            command = structs.replace(command, args=(at, *command.args[1:]))
        return drive.run(command)

    return run


def ready(drive: Drive) -> list[str]:
    """The bodies that are ready."""
    return [item.partition("\n")[2] for item in drive.state("ready").get("ready", [])]


# -- push -----------------------------------------------------------------------------------------


def test_a_push_is_sent_by_the_ack(engine_drive: Drive) -> None:
    """It stands at the tail of the same queue, is counted and rings; the acked message is gone."""
    drive = engine_drive
    drive.send("a", "b")
    drive.receive("L", 1)
    outcomes = Outcomes("L")
    outcomes.ack_with(0, [push_effect(new("c", {"w": "t"}), NONE), result_effect(b"ok\n1", 1000)])
    assert drive.settle(outcomes, at=NOW + 5).counted == (True,)
    assert drive.state("ready", "lease:L", "result:a") == {
        "ready": [own("b"), own("c", NOW + 5, flags=" w=t")],
        "result:a": "ok\n1",
    }
    counted = drive.stats("sent", "stored", "acked", "unacked")
    assert counted == {"sent": 3, "stored": 2, "acked": 1, "unacked": 0}


def test_a_push_obeys_its_options_and_the_attributes(drive: Drive) -> None:
    """Priority with its level, delay and ttl, of the message or of the queue."""
    drive.redis.hset(drive.keys.meta, mapping={"delay_ms": 7, "ttl_ms": 50})
    drive.send("a", delay_ms=0)
    drive.receive("L", at=NOW)
    outcomes = Outcomes("L")
    outcomes.ack_with(
        0,
        [
            push_effect(new("b"), SendOptions(priority=3, delay=0, ttl="20ms")),
            push_effect(new("c"), SendOptions(ttl=0)),
            push_effect(new("d"), SendOptions(priority=3, delay=0)),
        ],
    )
    drive.settle(outcomes)
    assert drive.state("ready:3", "delayed", "meta") == {
        "ready:3": [own("b", flags=f" x={NOW + 20}"), own("d", flags=f" x={NOW + 50}")],
        "delayed": {own("c", ready_ms=NOW + 7): NOW + 7},
        "meta": {"delay_ms": "7", "ttl_ms": "50", "levels": "3"},
    }


def test_a_level_that_pushes_begin_to_use_is_noted_once(drive: Drive) -> None:
    """Also by acks of several leases in one call, of which each is settled by itself."""
    drive.send("a", "b", "c", "d")
    done = []
    for lease_id, number in (("L", 1), ("M", 1), ("N", 2)):
        drive.receive(lease_id, number)
        outcomes = Outcomes(lease_id)
        for index in [0] if number == 1 else [1, 2]:
            pushed = push_effect(new(f"{lease_id}{index}"), SendOptions(priority=3 + index))
            outcomes.ack_with(index, [pushed])
        done.append(outcomes)
    drive.settle(*done)
    assert drive.state("meta")["meta"]["levels"] == "345"
    assert drive.stats("sent", "stored", "acked") == {"sent": 8, "stored": 4, "acked": 4}


def test_a_message_ages_in_an_outbox(drive: Drive, other: Drive) -> None:
    """Its delay and its time to live begin with the ack; one that has outlived that expires when it is received."""
    other.redis.hset(other.keys.meta, "paused", "in")
    effects = [
        out("b", ttl="1s", delay="300ms"),
        out("c", ttl="100ms"),
        out("d", ttl=0),
        out("e"),
        out("f", delay="2s"),
    ]
    ack(drive, "a", *effects)
    assert "other" in relayed(drive, NOW + 400)
    other.redis.hset(other.keys.meta, mapping={"paused": "", "ttl_ms": 50})
    later = NOW + 500
    assert relayed(drive, later) == {}
    assert other.state("ready", "delayed") == {
        "ready": [
            own("b", later, flags=f" x={NOW + 1000}"),
            own("c", later, flags=f" x={later + 1}"),
            own("d", later),
            own("e", later, flags=f" x={later + 50}"),
        ],
        "delayed": {own("f", later, ready_ms=NOW + 2000, flags=f" x={later + 50}"): NOW + 2000},
    }


def test_a_push_enters_its_group(drive: Drive) -> None:
    """Also the first one of the queue: it waits among the members, not in the list."""
    ack(drive, "a", push_effect(new("b", {"g": "acme"}), NONE))
    assert ready(drive) == []
    assert drive.state("meta")["meta"]["groups"] == "1"
    assert len(drive.state("delayed")["delayed"]) == 1


def test_many_acks_of_a_lease_keep_each_its_own_result(drive: Drive) -> None:
    """More than a command reads at once."""
    ids = [f"m{number}" for number in range(1, 601)]
    drive.send(*ids)
    drive.receive("L", len(ids))
    outcomes = Outcomes("L")
    for index, message_id in enumerate(ids, 1):
        outcomes.ack_with(index, [result_effect(f"ok\n{message_id}".encode(), 60_000)])
    assert all(drive.settle(outcomes).counted)
    keys = [drive.keys.result(message_id) for message_id in ids]
    assert drive.redis.mget(keys) == [f"ok\n{message_id}".encode() for message_id in ids]


def test_effects_of_a_stale_or_repeated_ack_do_not_happen(drive: Drive, other: Drive) -> None:
    """Neither a push nor an entry of an outbox."""
    drive.send("a")
    drive.receive("L")
    outcomes = Outcomes("L")
    outcomes.ack_with(0, [push_effect(new("b"), NONE), out("c")])
    assert [drive.settle(outcomes).counted for _ in range(3)] == [(True,), (False,), (False,)]
    assert ready(drive) == ["b"]
    assert relayed(drive) == {}
    assert ready(other) == ["c"]


def test_a_push_is_journalled_as_a_send(drive: Drive) -> None:
    """Beside the ack that it comes of, if the journal is of everything."""
    drive.redis.hset(drive.keys.meta, "journal", "all")
    ack(drive, "a", push_effect(new("b"), NONE))
    [*_, last] = drive.state("journal")["journal"]
    events = [group.split(" ")[0] for group in last["e1"].split("\n\n")]
    assert sorted(events) == ["acked", "sent"]


def test_keys_of_another_type_are_found_before_anything_is_written(drive: Drive) -> None:
    """The ack does not count, and can be repeated."""
    drive.redis.set(drive.keys.ready[4], "x")
    drive.redis.set(drive.keys.outbox("other"), "x")
    for effect in (push_effect(new("b"), SendOptions(priority=4)), out("c")):
        before = drive.state()
        drive.send("a")
        drive.receive("L")
        outcomes = Outcomes("L")
        outcomes.ack_with(0, [effect])
        with pytest.raises(ServerError, match="is a string"):
            drive.settle(outcomes)
        release = Outcomes("L")
        release.ack_all = True
        drive.settle(release)
        assert drive.state("ready:4", "out:other") == {
            part: before[part] for part in ("ready:4", "out:other")
        }


def test_a_user_without_the_right_to_outboxes_changes_nothing() -> None:
    """The rights are checked before the first write."""
    with guarded() as drive:
        drive.send("a")
        drive.receive("L")
        deny(drive, "xadd")
        outcomes = Outcomes("L")
        outcomes.ack_with(0, [result_effect(b"ok\n1", 1000), out("b")])
        before = drive.state()
        with pytest.raises(AccessDeniedError, match="may not write outboxes"):
            drive.settle(outcomes)
        assert drive.state() == before


@pytest.mark.parametrize("denied", ["rpush", "zadd", "hset"])
def test_a_user_without_the_right_to_send_follows_nothing_up(denied: str) -> None:
    """An ack that stopped midway would be repeated, and would send its message again."""
    with guarded() as drive:
        drive.send("a")
        drive.receive("L")
        outcomes = Outcomes("L")
        outcomes.ack_with(0, [push_effect(new("b"), NONE)])
        before = drive.state()
        deny(drive, denied)
        with pytest.raises(AccessDeniedError, match="may not write messages"):
            drive.settle(outcomes)
        assert drive.state() == before


def test_a_relayer_without_the_right_to_count_stores_nothing() -> None:
    """It relays an entry until it is stored, and would store it each time."""
    with guarded() as drive:
        entries = [OutboxMessage(7, 0, b"", b"", b"q1 b ", tail(b"b"))]
        deny(drive, "hset")
        with pytest.raises(AccessDeniedError, match="may not write messages"):
            drive.run(accept(drive.keys, "out-1", entries, now_ms=NOW))
        assert drive.state() == {}


# -- out ------------------------------------------------------------------------------------------


def test_an_entry_waits_until_it_is_relayed(engine_drive: Drive) -> None:
    """It is counted at its source, and a send at its destination."""
    drive = engine_drive
    ack(drive, "a", out("b"))
    [waiting] = run_plan(timed(drive, NOW + 1500), outboxes_of(drive.keys))
    assert (waiting.destination, waiting.entries, waiting.age_s) == ("other", 1, 1.5)
    assert drive.stats("followed", "sent") == {"followed": 1, "sent": 1}
    target = QueueKeys(drive.namespace, "other")
    drive.redis.hset(target.meta, "test", 1)
    assert relayed(drive) == {}
    assert run_plan(timed(drive), outboxes_of(drive.keys)) == []
    assert drive.redis.lrange(target.ready[0], 0, -1) == [own("b").encode()]
    assert drive.redis.hgetall(target.stats) == {b"sent": b"1", b"stored": b"1"}


def test_entries_are_stored_in_order_and_once(drive: Drive, other: Drive) -> None:
    """Of all priorities and delays; the outbox is empty afterwards."""
    for number in range(8):
        ack(drive, f"a{number}", out(f"b{number}", priority=number % 2 * 3))
    ack(drive, "a8", out("b8", delay="1m"))
    assert relayed(drive) == {}
    assert relayed(drive) == {}
    assert run_plan(timed(drive), outboxes_of(drive.keys)) == []
    assert ready(other) == ["b0", "b2", "b4", "b6"]
    lists = other.state("ready:3", "delayed", "meta")
    assert [item[3:5] for item in lists["ready:3"]] == ["b1", "b3", "b5", "b7"]
    assert [item[3:5] for item in lists["delayed"]] == ["b8"]
    assert lists["meta"] == {"levels": "3"}
    assert other.stats("sent", "stored") == {"sent": 9, "stored": 9}


def test_a_destination_that_takes_nothing_holds_up_no_other(drive: Drive, other: Drive) -> None:
    """Its entries wait, in order, until it takes them; nothing is lost."""
    other.redis.hset(other.keys.meta, "paused", "in")
    drive.redis.hset(QueueKeys(drive.namespace, "third").meta, "test", 1)
    ack(drive, "a", out("b"), out_effect("third", new("c"), NONE), out("d"))
    [(name, problem)] = relayed(drive).items()
    assert name == "other"
    assert isinstance(problem, QueuePausedError)
    assert drive.redis.llen(QueueKeys(drive.namespace, "third").ready[0]) == 1
    other.redis.hdel(other.keys.meta, "paused")
    assert relayed(drive) == {}
    assert ready(other) == ["b", "d"]


def test_a_nearly_full_destination_takes_the_first_ones(drive: Drive, other: Drive) -> None:
    """As many as maxlen allows, and the others when there is room again."""
    other.redis.hset(other.keys.meta, "maxlen", 2)
    ack(drive, "a", *(out(f"b{number}") for number in range(5)))
    assert isinstance(relayed(drive)["other"], QueueFullError)
    assert ready(other) == ["b0", "b1"]
    assert [outbox.entries for outbox in run_plan(timed(drive), outboxes_of(drive.keys))] == [3]
    other.redis.hset(other.keys.meta, "maxlen", 9)
    assert relayed(drive) == {}
    assert ready(other) == ["b0", "b1", "b2", "b3", "b4"]


def test_an_outbox_that_was_not_used_for_long_goes(drive: Drive, other: Drive) -> None:
    """With its lane, which the destination forgets as well; the next entry has another one."""
    ack(drive, "a", out("b"))
    assert relayed(drive) == {}
    assert set(drive.state("out", "out:other")) == {"out", "out:other"}
    lane = drive.state("out")["out"]["other"].split()[0]
    drive.run(forward(drive.keys, "other", now_ms=NOW + 900_002))
    assert drive.state("out", "out:other") == {}
    ack(drive, "c", out("d"), at=NOW + 900_003)
    assert drive.state("out")["out"]["other"].split()[0] != lane
    assert relayed(drive, NOW + 900_003) == {}
    assert ready(other) == ["b", "d"]


def test_numbers_that_a_failover_took_back_are_not_given_again(drive: Drive, other: Drive) -> None:
    """The source is as it was before its last ack, whose message the destination has."""
    ack(drive, "a", out("b"))
    relayed(drive)
    lane = drive.redis.hget(drive.keys.out, "other")
    ack(drive, "c", out("lost"), at=NOW + 1)
    relayed(drive)
    drive.redis.hset(drive.keys.out, "other", lane)
    drive.redis.delete(drive.keys.outbox("other"))
    ack(drive, "e", out("kept"), at=NOW + 2)
    assert relayed(drive) == {}
    assert ready(other) == ["b", "lost", "kept"]


def test_the_number_of_another_lane_forgets_nothing(drive: Drive, other: Drive) -> None:
    """A relayer stopped after its read; its queue was removed and made again before it goes on."""
    ack(drive, "a", out("b"))
    page: OutboxPage = drive.run(forward(drive.keys, "other", now_ms=NOW))
    drive.redis.hset(drive.keys.out, "other", f"out-ff {page.entries[0].number}")
    late: OutboxPage = drive.run(
        forward(drive.keys, "other", page.lane, page.entries[0].number, now_ms=NOW)
    )
    assert [entry.head for entry in late.entries if isinstance(entry, OutboxMessage)] == [b"q1 b "]
    assert relayed(drive) == {}
    assert ready(other) == ["b"]


@pytest.mark.parametrize("words", [b"dead max_receives ValueError b t x\nno", b"cancelled", b""])
def test_a_value_stays_whatever_is_told_late(drive: Drive, words: bytes) -> None:
    """A chain was redriven and has succeeded before the relay of its death, from another queue, goes on."""
    ack(drive, "a", result_effect(b"ok\n1", 60_000))
    drive.run(tell(drive.keys, "out-a1", [Notice(1, b"a", 60_000, words)], now_ms=NOW))
    assert drive.state("result:a") == {"result:a": "ok\n1"}
    drive.run(tell(drive.keys, "out-a1", [Notice(2, b"c", 60_000, words)], now_ms=NOW))
    assert drive.state("result:c") == ({"result:c": words.decode()} if words else {})


def test_a_reaper_relays_what_was_left(drive: Drive, other: Drive, client: Client) -> None:
    """Its worker has died before it could; a pass is enough."""
    ack(drive, "a", out("b"))
    drive.redis.hset(f"{drive.namespace}:queues", mapping={drive.keys.queue: 1, "other": 1})
    for each in (drive, other):
        each.redis.hdel(each.keys.meta, "test")
    Reaper(client, drive.namespace).tick()
    assert ready(other) == ["b"]


@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
@pytest.mark.slow
def test_any_interleaving_of_relayers_stores_each_entry_once_in_order(
    drive: Drive, other: Drive, data: st.DataObject
) -> None:
    """Each stops and continues between its calls, may repeat a call, or never continue; one at last relays the rest."""
    for each in (drive, other):
        each.redis.delete(*(each.base + part for part in (*each.state(), "none")))
        each.redis.hset(each.keys.meta, "test", "1")
    number = 0
    pages: dict[int, tuple[OutboxPage, int]] = {}
    for _ in range(data.draw(st.integers(5, 25))):
        step = data.draw(st.sampled_from(("ack", "read", "store", "store", "forget", "forget")))
        who = data.draw(st.integers(0, 2))
        page, stored = pages.get(who, (None, 0))
        if step == "ack":
            ack(drive, f"a{number}", out(f"b{number}"), at=NOW + number)
            number += 1
        elif step == "read":
            count = data.draw(st.integers(1, 4))
            pages[who] = drive.run(forward(drive.keys, "other", count=count, now_ms=NOW)), 0
        elif page is not None and page.entries:
            if step == "store":
                pages[who] = page, drive.run(accept(other.keys, page.lane, page.entries))
            elif stored:
                drive.run(forward(drive.keys, "other", page.lane, stored, count=0, now_ms=NOW))
    assert relayed(drive) == {}
    assert ready(other) == [f"b{at}" for at in range(number)]
