"""Identities: never twice, over threads, processes and forks."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable

import pytest

from qworker.errors import InvalidOptionError
from qworker.wire import ids
from qworker.wire.ids import ID_LENGTH, EntryId, IdSource, new_lane_id
from tests.effort import examples
from tests.tables import each

LEASE = re.compile(r"[0-9a-f]{24}-\d+")
MESSAGE = re.compile(r"[0-9a-z]{10}\d{10}")


def drawn_at_once(threads: int, draw: Callable[[], list[str]]) -> list[str]:
    """What several threads draw that begin together."""
    drawn: list[str] = []
    begin = threading.Barrier(threads)

    def run() -> None:
        begin.wait()
        drawn.extend(draw())

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return drawn


def drawn_in_a_child(draw: Callable[[], list[str]]) -> list[str]:
    """What a forked child draws."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as pipe:
            pipe.write("\n".join(draw()))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        words = pipe.read().split("\n")
    os.waitpid(pid, 0)
    return words


def test_message_ids_have_a_fixed_width_and_sort_in_order() -> None:
    """Ids of one source sort in the order of drawing, across powers of ten, so equal due times keep send order."""
    source = IdSource()
    drawn = [source.message_id() for _ in range(2000)]
    assert {len(message_id) for message_id in drawn} == {ID_LENGTH}
    assert all(MESSAGE.fullmatch(message_id) for message_id in drawn)
    assert sorted(drawn) == drawn
    assert len({message_id[:10] for message_id in drawn}) == 1


@pytest.mark.bad_input("time or host: cloned container, forked process")
def test_sources_differ() -> None:
    """Two sources in one process share nothing, and lease ids carry 96 random bits."""
    one, two = IdSource(), IdSource()
    assert one.message_id()[:10] != two.message_id()[:10]
    leases = [one.lease_id(), one.lease_id(), two.lease_id()]
    assert all(LEASE.fullmatch(lease) for lease in leases)
    assert leases[0].split("-")[0] == leases[1].split("-")[0] != leases[2].split("-")[0]
    assert len(set(leases)) == 3


@pytest.mark.bad_input("time or host: cloned container, forked process")
def test_lane_ids_are_random() -> None:
    """A lane has 96 random bits."""
    lanes = {new_lane_id() for _ in range(1000)}
    assert len(lanes) == 1000
    assert all(re.fullmatch(r"[0-9a-f]{24}", lane) for lane in lanes)


def test_threads_never_draw_the_same() -> None:
    """A source is shared by threads."""
    source = IdSource()
    drawn = drawn_at_once(8, lambda: [source.message_id() for _ in range(5000)])
    drawn += drawn_at_once(8, lambda: [source.lease_id() for _ in range(1000)])
    assert len(set(drawn)) == 8 * 6000


@pytest.mark.bad_input("time or host: cloned container, forked process")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_fork_draws_new_identities() -> None:
    """A child that inherited a source shares neither prefix nor ids with its parent or its sisters."""
    source = IdSource()
    parent = [source.message_id(), source.lease_id()]
    children = [
        drawn_in_a_child(lambda: [source.message_id(), source.lease_id(), source.message_id()])
        for _ in range(3)
    ]
    parent += [source.message_id(), source.lease_id()]
    assert len({words[0][:10] for words in [parent, *children]}) == 4
    assert len({words[1].split("-")[0] for words in [parent, *children]}) == 4
    assert parent[0][:10] == parent[2][:10]
    assert children[0][0][:10] == children[0][2][:10]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_fork_while_another_thread_draws() -> None:
    """A fork in the middle of another thread's call does not lock the child up."""
    source = IdSource()
    stop = threading.Event()

    def draw_on() -> None:
        while not stop.is_set():
            source.message_id()

    drawer = threading.Thread(target=draw_on)
    drawer.start()
    try:
        for _ in range(examples(20)):
            assert MESSAGE.fullmatch(drawn_in_a_child(lambda: [source.message_id()])[0])
    finally:
        stop.set()
        drawer.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    "children",
    [
        100,
        pytest.param(400, marks=pytest.mark.nightly("test_threads_of_a_child_never_draw_the_same")),
    ],
)
def test_threads_of_a_child_never_draw_the_same(
    monkeypatch: pytest.MonkeyPatch, children: int
) -> None:
    """Threads that begin together in a fresh child draw no id twice, though each finds the source inherited."""
    pid = 1
    monkeypatch.setattr(ids.os, "getpid", lambda: pid)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        source = IdSource()
        for _ in range(children):
            pid += 1
            drawn = drawn_at_once(8, lambda: [source.message_id() for _ in range(20)])
            assert len(set(drawn)) == 160
    finally:
        sys.setswitchinterval(interval)


@each("text", ["5-1", "5-1/3", "0-0", f"{2**64 - 1}-{2**64 - 1}/63"])
def test_an_entry_id_is_read_as_it_is_written(text: str) -> None:
    """With its shard, unless that is the first one."""
    assert str(EntryId.parse(text)) == text


@each(
    "text", ["", "5", "5-", "-1", "5-1/", "5-1/64", "5-1/100", f"{2**64}-0", f"0-{2**64}", "+", 5]
)
def test_other_text_is_not_an_entry_id(text: object) -> None:
    """Nothing else names a dead letter."""
    with pytest.raises(InvalidOptionError, match=r"entry id: .* is not an entry id; it is written"):
        EntryId.parse(text)


@pytest.mark.slow
def test_entry_ids_sort_by_time_over_all_shards() -> None:
    """Numbers sort as numbers; dead letters of the same id sort by shard."""
    ids = [EntryId(9, 10), EntryId(10, 2, 1), EntryId(10, 2, 2), EntryId(10, 10), EntryId(11, 0)]
    assert sorted((ids[3], ids[1], ids[4], ids[0], ids[2])) == ids


def test_entry_ids_have_neighbours() -> None:
    """Also over the end of a millisecond; nothing comes before the first and behind the last one."""
    last = 2**64 - 1
    assert EntryId(5, 1, 2).before() == EntryId(5, 0, 2)
    assert EntryId(5, 0, 2).before() == EntryId(4, last, 2)
    assert EntryId(0, 0).before() is None
    assert EntryId(5, 1, 2).after() == EntryId(5, 2, 2)
    assert EntryId(5, last, 2).after() == EntryId(6, 0, 2)
    assert EntryId(last, last).after() is None
