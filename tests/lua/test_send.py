"""send.lua: store new messages once, however often the call is repeated."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.engine.reap import prune
from qworker.engine.send import NewMessage, send
from qworker.errors import (
    BodyTooLargeError,
    GhostSendError,
    OutOfMemoryError,
    QueueFullError,
    QueuePausedError,
)
from qworker.wire.envelope import tail
from tests import servers
from tests.lua.drive import NOW, Drive, own


def send_unique(drive: Drive, *pairs: tuple[str, str], at: int = NOW, **options: Any) -> Any:
    """Send (id, unique key) pairs in one call, each key held for 10 s."""
    messages = [NewMessage(pair, tail(b"", {"u": key}), key, "10000") for pair, key in pairs]
    options = {"lane": "", "sequence": 0, **options}
    return drive.run(send(drive.keys, messages, now_ms=at, **options))


def words(*messages: tuple[str, str], **changed: Any) -> list[Any]:
    """The arguments of a send as the script reads them, some of them changed by name."""
    named = {
        "now": NOW, "lane": "", "sequence": 0, "delay": 0, "ttl": 0, "priority": 0,
        "number": len(messages),
    } | changed  # fmt: skip
    tails = named.pop("uniques", [0])
    return [*named.values(), *(word for message in messages for word in message), *tails]


A = ("q1 a ", "\nA")


def lanes(drive: Drive) -> dict[str, str]:
    """The lanes that stand among the counters."""
    stats = drive.state("stats").get("stats", {})
    return {name[5:]: value for name, value in stats.items() if name.startswith("lane:")}


def test_stores_messages_at_the_tail_of_ready(engine_drive: Drive) -> None:
    """Messages stand in ready in order, stamped with the server's time, counted, and one waiter each is woken."""
    drive = engine_drive
    sent = drive.send("a", "b", lane="lane", sequence=1)
    assert (sent.ids, sent.duplicates, sent.now_ms, sent.repeated) == (("a", "b"), (), NOW, False)
    drive.send("c", at=NOW + 5, lane="lane", sequence=2)
    assert drive.state() == {
        "ready": [own("a"), own("b"), own("c", NOW + 5)],
        "wake": ["1", "1"],
        "stats": {"sent": "3", "stored": "3", "lane:lane": "2 1000005"},
    }


def test_sender_without_a_lane_leaves_no_trace_of_itself(drive: Drive) -> None:
    """A one-shot sender has no lane and no entry among the producers."""
    drive.send("a")
    assert drive.state() == {
        "ready": [own("a")],
        "wake": ["1"],
        "stats": {"sent": "1", "stored": "1"},
    }


def test_keeps_bodies_byte_for_byte(drive: Drive) -> None:
    """A body may hold any byte, and lines that look like headers; flags stand before the first newline."""
    body = bytes(range(256)) + b"\nq1 x 1 0 0 0 0 p=9\n"
    drive.send("a", body=lambda _: body, flags={"w": "a b=\n"})
    assert drive.redis.lrange(drive.keys.ready[0], 0, -1) == [
        b"q1 a 1000000 0 0 0 0 w=a%20b%3D%0A\n" + body
    ]


def test_delayed_messages_wait_with_their_due_time(drive: Drive) -> None:
    """A delay puts messages into delayed at their due time; no receiver is woken."""
    drive.send("a", delay_ms=2500)
    assert drive.state() == {
        "delayed": {own("a", ready_ms=NOW + 2500): NOW + 2500},
        "stats": {"sent": "1", "stored": "1"},
    }


def test_priority_has_a_list_and_is_noted_once(drive: Drive) -> None:
    """A priority's messages go to its own list, and meta.levels names each priority in use once."""
    drive.send("a", priority=5)
    drive.send("b", priority=5)
    drive.send("c", priority=9)
    drive.send("d")
    assert drive.state("ready", "ready:5", "ready:9", "meta") == {
        "ready": [own("d")],
        "ready:5": [own("a"), own("b")],
        "ready:9": [own("c")],
        "meta": {"levels": "59"},
    }


def test_delayed_priority_does_not_open_its_level(drive: Drive) -> None:
    """Only what goes to a list puts its priority in use."""
    drive.send("a", priority=5, delay_ms=1)
    assert "meta" not in drive.state()


def test_queue_gives_delay_and_ttl_where_the_send_does_not(drive: Drive) -> None:
    """An absent delay or time to live is the queue's, a given 0 is none."""
    drive.redis.hset(drive.keys.meta, mapping={"delay_ms": 100, "ttl_ms": 5000})
    drive.send("a")
    drive.send("b", delay_ms=0, ttl_ms=0)
    drive.send("c", delay_ms=7, ttl_ms=8)
    assert drive.state("ready", "delayed") == {
        "ready": [own("b")],
        "delayed": {
            own("a", flags=" x=1005000", ready_ms=NOW + 100): NOW + 100,
            own("c", flags=" x=1000008", ready_ms=NOW + 7): NOW + 7,
        },
    }


@pytest.mark.bad_input("time or host: clocks of clients a day off")
def test_due_time_is_counted_by_the_clock_of_the_server(drive: Drive) -> None:
    """A moment instead of a delay is kept as it is; one that is past or now is ready at once."""
    drive.redis.hset(drive.keys.meta, "delay_ms", 9)
    drive.send("a", due_ms=NOW + 70)
    drive.send("b", due_ms=NOW)
    drive.send("c", due_ms=5)
    assert drive.state("ready", "delayed") == {
        "ready": [own("b"), own("c")],
        "delayed": {own("a", ready_ms=NOW + 70): NOW + 70},
    }


@pytest.mark.bad_input("data found: nonsense in meta")
@pytest.mark.parametrize("value", ["nan", "inf", "-5", "1e99", "x", ""])
def test_invalid_attribute_is_the_default(drive: Drive, value: str) -> None:
    """A delay, time to live, maxlen or maxsize in meta that makes no sense counts as none."""
    drive.redis.hset(
        drive.keys.meta, mapping=dict.fromkeys(("delay_ms", "ttl_ms", "maxlen", "maxsize"), value)
    )
    drive.send("a")
    assert drive.state("ready", "delayed") == {"ready": [own("a")]}


def test_times_are_clamped_to_what_a_score_can_say(drive: Drive) -> None:
    """A due time ends below 2^52 ms, where the seats of groups begin, and a time to live at 2^53 ms."""
    drive.send("a", delay_ms=2**53, ttl_ms=2**53)
    latest = 2**52 - 1
    assert drive.state("delayed") == {
        "delayed": {own("a", flags=f" x={2**53}", ready_ms=latest): float(latest)},
    }


def test_large_times_are_written_in_full(drive: Drive) -> None:
    """From fourteen digits on a time is still written with all its digits."""
    at = 123_456_789_012_345
    drive.send("a", at=at, ttl_ms=1, lane="l", sequence=2**53 - 1)
    assert drive.state("ready") == {"ready": [own("a", at, flags=" x=123456789012346")]}
    assert lanes(drive) == {"l": "9007199254740991 123456789012345"}


def test_thousand_messages_go_in_one_call(engine_drive: Drive) -> None:
    """A full call is stored whole and in order, ready or delayed."""
    ids = [f"m{number:04d}" for number in range(1000)]
    engine_drive.send(*ids)
    engine_drive.send(*ids, delay_ms=10)
    state = engine_drive.state()
    assert state["ready"] == [own(message_id) for message_id in ids]
    assert state["delayed"] == {own(message_id, ready_ms=NOW + 10): NOW + 10 for message_id in ids}
    assert state["stats"] == {"sent": "2000", "stored": "2000"}
    assert state["wake"] == ["1"] * 8


def test_doorbell_is_bounded(drive: Drive) -> None:
    """A call leaves as many tokens as it has messages, and never more than eight, counting those that wait."""
    drive.send("a", "b", "c")
    drive.send("d", "e")
    assert drive.state("wake") == {"wake": ["1"] * 3}
    drive.redis.ltrim(drive.keys.wake, 2, -1)
    drive.send("f", "g", "h")
    assert drive.state("wake") == {"wake": ["1"] * 3}
    drive.send(*(f"m{number}" for number in range(20)))
    assert drive.state("wake") == {"wake": ["1"] * 8}


# -- once -----------------------------------------------------------------------------------------


def test_repeated_call_stores_nothing(drive: Drive) -> None:
    """The same number on the same lane is a success that stores nothing, also where the queue is full by now."""
    drive.send("a", "b", lane="lane", sequence=1)
    before = drive.state()
    again = drive.send("a", "b", at=NOW + 9, lane="lane", sequence=1)
    assert (again.ids, again.duplicates, again.repeated) == (("a", "b"), (), True)
    drive.redis.hset(drive.keys.meta, mapping={"maxlen": 1, "paused": "in"})
    assert drive.send("a", "b", lane="lane", sequence=1).repeated
    drive.redis.hdel(drive.keys.meta, "maxlen", "paused")
    assert drive.state() == before


def test_older_call_is_a_ghost(drive: Drive) -> None:
    """A number below the lane's last is refused as an error, never taken for a success."""
    drive.send("b", lane="lane", sequence=2)
    before = drive.state()
    with pytest.raises(GhostSendError, match="send 1 of lane lane"):
        drive.send("a", lane="lane", sequence=1)
    assert drive.state() == before


def test_numbers_may_skip_and_lanes_are_apart(drive: Drive) -> None:
    """A refused call leaves a gap in the numbers; another lane has its own numbers."""
    drive.send("a", lane="one", sequence=1)
    drive.send("b", lane="one", sequence=7)
    drive.send("c", lane="two", sequence=1)
    assert drive.state("ready") == {"ready": [own("a"), own("b"), own("c")]}
    assert lanes(drive) == {"one": "7 1000000", "two": "1 1000000"}


def test_interleaved_lanes_lose_nothing(drive: Drive) -> None:
    """Senders whose calls arrive in any order between each other are all stored: order counts within a lane alone."""
    for sequence in range(1, 6):
        for lane in ("x", "y", "z"):
            drive.send(f"{lane}{sequence}", lane=lane, sequence=sequence)
    assert len(drive.state()["ready"]) == 15


# -- refusals -------------------------------------------------------------------------------------


def test_full_queue_refuses_the_whole_call(drive: Drive) -> None:
    """maxlen is held against everything stored, wherever it is; a call that does not fit stores nothing."""
    drive.redis.hset(drive.keys.meta, "maxlen", 4)
    drive.send("a", "b")
    drive.send("c", delay_ms=60_000)
    drive.receive("L", 2)
    before = drive.state()
    with pytest.raises(QueueFullError) as caught:
        drive.send("d", "e")
    assert (caught.value.stored, caught.value.maxlen) == (3, 4)
    assert drive.state() == before
    drive.send("d")
    assert drive.stats("stored") == {"stored": 4}


def test_refused_number_may_be_followed_by_a_newer_one(drive: Drive) -> None:
    """A definite refusal does not use the lane up."""
    drive.redis.hset(drive.keys.meta, "paused", "in")
    with pytest.raises(QueuePausedError):
        drive.send("a", lane="lane", sequence=1)
    drive.redis.hset(drive.keys.meta, "paused", "")
    drive.send("a", lane="lane", sequence=2)
    assert drive.state("ready") == {"ready": [own("a")]}
    assert lanes(drive) == {"lane": "2 1000000"}


@pytest.mark.parametrize("paused", ["in", "all"])
def test_queue_paused_for_input_refuses(drive: Drive, paused: str) -> None:
    """While input is paused nothing is stored."""
    drive.redis.hset(drive.keys.meta, "paused", paused)
    with pytest.raises(QueuePausedError):
        drive.send("a", lane="lane", sequence=1)
    assert drive.state() == {"meta": {"paused": paused}}


def test_queue_paused_for_output_takes_messages_and_wakes_no_receiver(drive: Drive) -> None:
    """While output is paused messages are stored, and the doorbell is silent."""
    drive.redis.hset(drive.keys.meta, "paused", "out")
    drive.send("a")
    assert drive.state() == {
        "ready": [own("a")],
        "meta": {"paused": "out"},
        "stats": {"sent": "1", "stored": "1"},
    }


def test_body_over_maxsize_is_refused_with_its_call(drive: Drive) -> None:
    """maxsize bounds the body without its header; a single larger one refuses the whole call."""
    drive.redis.hset(drive.keys.meta, "maxsize", 10)
    with pytest.raises(BodyTooLargeError) as caught:
        drive.send("0123456789", "0123456789a", flags={"w": "x" * 50})
    assert (caught.value.size, caught.value.maxsize) == (11, 10)
    assert drive.state() == {"meta": {"maxsize": "10"}}
    drive.send("0123456789", flags={"w": "x" * 50})
    assert drive.stats("stored") == {"stored": 1}


def test_without_a_time_the_clock_of_the_server_counts(drive: Drive) -> None:
    """A message is stamped with the server's time."""
    seconds, _ = drive.redis.time()
    reply = drive.call("send", drive.sending_keys(), *words(A, now=""))
    assert 0 <= int(reply[2]) - seconds * 1000 < 60_000
    assert drive.state()["ready"] == [own("a", int(reply[2]), body="A")]


@pytest.mark.bad_input("data found: nonsense in stats")
def test_invalid_counter_is_reported_and_does_not_fail_the_call(drive: Drive) -> None:
    """A counter of another kind leaves the message stored and the reply marked degraded."""
    drive.redis.hset(drive.keys.stats, "stored", "many")
    assert drive.call("send", drive.sending_keys(), *words(A)) == ["OK", 1, str(NOW), 1]
    assert drive.state("ready", "stats") == {
        "ready": [own("a", body="A")],
        "stats": {"stored": "many", "sent": "1"},
    }
    assert drive.call("send", drive.sending_keys(5), *words(A, priority=5))[0] == "OK"


def test_full_server_refuses_sends() -> None:
    """Over maxmemory nothing new is stored, and nothing half."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            drive.send("a", lane="lane", sequence=1)
            drive.redis.config_set("maxmemory", 1)
            before = drive.state()
            with pytest.raises(OutOfMemoryError):
                drive.send("b", lane="lane", sequence=2)
            assert drive.state() == before
            drive.close()


# -- unique keys ----------------------------------------------------------------------------------


def test_unique_key_keeps_another_message_out(engine_drive: Drive) -> None:
    """While the holder lives, messages with its key are not stored, and their senders learn its id."""
    drive = engine_drive
    send_unique(drive, ("a", "k"))
    sent = send_unique(drive, ("b", "k"), ("c", "other"), at=NOW + 9_999)
    assert (sent.ids, sent.duplicates) == (("a", "c"), (0,))
    assert drive.state() == {
        "ready": [
            own("a", flags=" u=k", body=""),
            own("c", NOW + 9_999, flags=" u=other", body=""),
        ],
        "wake": ["1"],
        "unique": {"k": "a 1010000", "other": "c 1019999"},
        "stats": {"sent": "2", "stored": "2"},
    }


def test_unique_key_is_free_after_its_time(drive: Drive) -> None:
    """A key is held for the time that its sender said, not longer."""
    send_unique(drive, ("a", "k"))
    sent = send_unique(drive, ("b", "k"), at=NOW + 10_000)
    assert sent.duplicates == ()
    assert drive.state("unique") == {"unique": {"k": "b 1020000"}}


@pytest.mark.parametrize("before", [None, "old 999999"])
def test_unique_key_holds_within_a_call(drive: Drive, before: str | None) -> None:
    """Of two messages with one key in one call the first is stored, also where the key's last holder is over."""
    if before:
        drive.redis.hset(drive.keys.unique, "k", before)
    sent = send_unique(drive, ("a", "k"), ("b", "k"), ("c", "k"))
    assert (sent.ids, sent.duplicates) == (("a", "a", "a"), (1, 2))
    assert drive.state("ready", "unique") == {
        "ready": [own("a", flags=" u=k", body="")],
        "unique": {"k": "a 1010000"},
    }


def test_repetition_is_not_kept_out_by_its_own_key(drive: Drive) -> None:
    """A repeated call finds its own key held and says that its message is stored."""
    send_unique(drive, ("a", "k"), ("b", "k"), lane="lane", sequence=1)
    again = send_unique(drive, ("a", "k"), ("b", "k"), lane="lane", sequence=1)
    assert (again.ids, again.duplicates, again.repeated) == (("a", "a"), (1,), True)
    assert len(drive.state()["ready"]) == 1


def test_repetition_is_answered_as_the_first_time(drive: Drive) -> None:
    """Keys that were freed or taken meanwhile change nothing of what a call has done."""
    send_unique(drive, ("a", "k"))
    call = (("b", "k"), ("c", "l"), ("d", "k"))
    first = send_unique(drive, *call, lane="lane", sequence=1)
    assert (first.ids, first.duplicates) == (("a", "c", "a"), (0, 2))
    drive.redis.hset(drive.keys.unique, mapping={"l": "x 9999999"})
    drive.redis.hdel(drive.keys.unique, "k")
    again = send_unique(drive, *call, lane="lane", sequence=1)
    assert (again.ids, again.duplicates, again.repeated) == (("a", "c", "a"), (0, 2), True)
    assert drive.state("producers") == {"producers": {"lane": "1 1000000 1 a 3 a"}}
    assert lanes(drive) == {"lane": "-"}


def test_what_a_lane_keeps_out_moves_it_from_the_counters(drive: Drive) -> None:
    """Its numbers continue among the producers, and repeated calls are known there."""
    drive.send("first", lane="lane", sequence=1)
    assert lanes(drive) == {"lane": "1 1000000"}
    send_unique(drive, ("a", "k"), ("b", "k"), lane="lane", sequence=2)
    moved = lanes(drive), drive.state("producers")["producers"]
    assert moved == ({"lane": "-"}, {"lane": "2 1000000 2 a"})
    drive.send("c", lane="lane", sequence=3)
    assert drive.send("c", lane="lane", sequence=3).repeated
    with pytest.raises(GhostSendError):
        drive.send("b", lane="lane", sequence=2)
    moved = lanes(drive), drive.state("producers")["producers"]
    assert moved == ({"lane": "-"}, {"lane": "3 1000000"})
    assert drive.run(prune(drive.keys, now_ms=NOW)).forgotten == 0  # the sign alone is no lane
    assert lanes(drive) == {}
    assert drive.send("c", lane="lane", sequence=3).repeated


def test_lanes_beyond_the_first_have_their_place_among_the_producers(drive: Drive) -> None:
    """So that all counters can be read at once; a lane stays where it is, whichever way its sends take."""
    for number in range(70):
        drive.send(f"a{number}", lane=f"l{number}", sequence=1)
        drive.send(f"b{number}", lane=f"l{number}", sequence=2, delay_ms=5 if number % 2 else None)
        drive.send(f"c{number}", lane=f"l{number}", sequence=3)
        assert drive.send(f"c{number}", lane=f"l{number}", sequence=3).repeated
    near, far = lanes(drive), drive.state("producers")["producers"]
    assert len(near) == 62
    assert {**near, **far} == {f"l{number}": "3 1000000" for number in range(70)}
    assert drive.stats("sent", "stored") == {"sent": 210, "stored": 210}


def test_a_lane_that_an_earlier_version_began_goes_on_where_it_is(drive: Drive) -> None:
    """By the short way and by the long one."""
    drive.redis.hset(drive.keys.producers, "old", "4 5")
    assert drive.send("a", lane="old", sequence=4).repeated
    drive.send("b", lane="old", sequence=5)
    drive.send("c", "d", lane="old", sequence=6)
    assert drive.state("producers")["producers"] == {"old": "6 1000000"}
    assert (lanes(drive), len(drive.state("ready")["ready"])) == ({}, 3)


def test_kept_out_messages_need_no_room(drive: Drive) -> None:
    """What a unique key keeps out does not count against maxlen, and a call may store nothing at all."""
    send_unique(drive, ("a", "k"))
    drive.redis.hset(drive.keys.meta, "maxlen", 1)
    assert send_unique(drive, ("b", "k")).duplicates == (0,)
    assert drive.state("ready", "stats") == {
        "ready": [own("a", flags=" u=k", body="")],
        "stats": {"sent": "1", "stored": "1"},
    }
    with pytest.raises(QueueFullError):
        send_unique(drive, ("b", "k"), ("c", "other"))
    assert drive.state("unique") == {"unique": {"k": "a 1010000"}}


@pytest.mark.bad_input("data found: nonsense in other tables")
def test_unreadable_holder_of_a_unique_key_is_replaced(drive: Drive) -> None:
    """A field of unique that qworker did not write does not keep messages out."""
    drive.redis.hset(drive.keys.unique, "k", "rubbish")
    assert send_unique(drive, ("a", "k")).duplicates == ()
    assert drive.state("unique") == {"unique": {"k": "a 1010000"}}


def test_thousand_unique_messages_kept_out_in_one_call(drive: Drive) -> None:
    """The longest reply there is comes back whole."""
    first = [(f"a{number}", f"k{number}") for number in range(1000)]
    second = [(f"b{number}", f"k{number}") for number in range(1000)]
    send_unique(drive, *first)
    sent = send_unique(drive, *second)
    assert sent.ids == tuple(each for each, _ in first)
    assert sent.duplicates == tuple(range(1000))
    assert drive.stats() == {"sent": 1000, "stored": 1000}


def test_a_send_may_have_its_own_maxlen(engine_drive: Drive) -> None:
    """The lower of the send's and the queue's counts; refused, it leaves nothing."""
    drive = engine_drive
    drive.send("a", "b", maxlen=2)
    before = drive.state()
    with pytest.raises(QueueFullError) as refused:
        drive.send("c", maxlen=2)
    assert (refused.value.stored, refused.value.maxlen) == (2, 2)
    drive.redis.hset(drive.keys.meta, "maxlen", "2")
    with pytest.raises(QueueFullError) as refused:
        drive.send("c", maxlen=9)
    assert refused.value.maxlen == 2
    drive.redis.hset(drive.keys.meta, "maxlen", "9")
    with pytest.raises(QueueFullError):
        drive.send("c", maxlen=2)
    drive.redis.hdel(drive.keys.meta, "maxlen")
    assert drive.state() == before
    drive.send("c", maxlen=3)
    assert drive.stats("stored") == {"stored": 3}
