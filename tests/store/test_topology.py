"""Where calls go: what is asked of whom to find out, and what is learned from errors. No server is needed for that."""

from __future__ import annotations

import pytest

from qworker.errors import (
    ClusterMovingError,
    InDoubtError,
    InvalidOptionError,
    ReadOnlyError,
    UnavailableError,
    UnsupportedServerError,
)
from qworker.store.hello import Hello
from qworker.store.nodes import Address
from qworker.store.topology import Question, RedirectedError, topology_of
from qworker.store.url import ServerURL

A, B, C = (Address(name, 6379) for name in "abc")
#: `{b}` is in the lower half of the slots, `{a}` in the upper one.
LOW, HIGH = "n:{b}:ready", "n:{a}:ready"
DOWN = UnavailableError("down")


def find(topology, answers, key=None):
    """Run a search with an answer per address; returns where it went, and whom it asked."""
    asked, search, answer = [], topology.search(key), None
    while True:
        try:
            question = search.send(answer)
        except StopIteration as found:
            return found.value, asked
        asked.append(question)
        answer = answers[question.address]


def slots(*ranges):
    """The reply of CLUSTER SLOTS."""
    return [
        [first, last, [node.host.encode(), node.port, b"id", []]] for first, last, node in ranges
    ]


HALVES = slots((0, 8191, A), (8192, 16383, B))


class TestSingle:
    """One server."""

    @pytest.mark.parametrize(
        ("url", "address"),
        [("redis://a", A), ("unix:///run/s", Address("/run/s", 0))],
    )
    def test_is_always_where_it_is(self, url, address):
        """Nothing is asked, whatever the key, and whatever goes wrong."""
        topology = topology_of(ServerURL.parse(url))
        assert topology.failed(DOWN, address) is True
        assert topology.place(LOW) == topology.place(None) == address
        assert topology.masters() == (address,)
        assert find(topology, {}) == (address, [])
        topology.accept(Hello(role="replica"), address)


class TestWatched:
    """A master that Sentinels name."""

    @pytest.fixture
    def topology(self):
        return topology_of(ServerURL.parse("redis+sentinel://a,b,c/main"))

    S = tuple(Address(name, 26379) for name in "abc")
    NAMED = (b"m", b"7000")
    MASTER = Address("m", 7000)

    def test_asks_one_sentinel_after_the_other(self, topology):
        """The first that answers is believed, and asked first the next time."""
        assert topology.place(None) is None
        found, asked = find(topology, {self.S[0]: DOWN, self.S[1]: self.NAMED})
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
        assert found == self.MASTER
        assert asked == [Question(each, words, sentinel=True) for each in self.S[:2]]
        assert topology.place(LOW) == topology.place(None) == self.MASTER
        assert topology.masters() == (self.MASTER,)
        _, asked = find(topology, {self.S[1]: self.NAMED})
        assert [each.address for each in asked] == [self.S[1]]

    def test_asks_again_after_trouble(self, topology):
        """A master that failed is asked for anew; one that had been replaced before is not missed."""
        find(topology, {self.S[0]: self.NAMED})
        assert topology.failed(InDoubtError("silence"), Address("older", 1)) is True
        assert topology.place(None) == self.MASTER
        assert topology.failed(ReadOnlyError("READONLY"), self.MASTER) is True
        assert topology.place(None) is None

    def test_takes_no_replica_for_the_master(self, topology):
        """Sentinels name the old master for a while."""
        find(topology, {self.S[0]: self.NAMED})
        topology.accept(Hello(role="master"), self.MASTER)
        with pytest.raises(ReadOnlyError, match="m:7000 is named as the master and is a replica"):
            topology.accept(Hello(role="replica"), self.MASTER)
        assert topology.place(None) is None

    def test_a_service_that_nobody_watches(self, topology):
        """All Sentinels answer and none knows the name: the URL is wrong."""
        with pytest.raises(
            InvalidOptionError, match="the service 'main', which its Sentinels do not"
        ):
            find(topology, dict.fromkeys(self.S))

    def test_no_sentinel_answers(self, topology):
        """As long as one is silent it may be the one that knows."""
        with pytest.raises(UnavailableError, match="no Sentinel says who the master is; down"):
            find(topology, {self.S[0]: None, self.S[1]: DOWN, self.S[2]: None})


class TestSlots:
    """A Cluster."""

    @pytest.fixture
    def clock(self):
        return [100.0]

    @pytest.fixture
    def topology(self, clock):
        topology = topology_of(ServerURL.parse("redis+cluster://a,b"))
        topology._clock = lambda: clock[0]
        return topology

    def test_reads_the_map_once(self, topology):
        """One node tells which slots all have; keys go by their hash tag."""
        assert topology.place(LOW) is None
        assert find(topology, {A: HALVES}, LOW) == (A, [Question(A, ("CLUSTER", "SLOTS"))])
        assert [topology.place(key) for key in (LOW, HIGH, b"n:{a}:x", None)] == [A, B, B, A]
        assert topology.masters() == (A, B)

    def test_asks_the_next_node(self, topology):
        """A node that is away, or knows of no slots, is passed over."""
        assert find(topology, {A: DOWN, B: HALVES}, HIGH)[0] == B
        topology = topology_of(ServerURL.parse("redis+cluster://a,b"))
        assert find(topology, {A: [], B: HALVES}, HIGH)[0] == B

    @pytest.mark.parametrize("host", [b"", None, b"?"])
    def test_a_node_that_does_not_know_its_name(self, topology, host):
        """It has the address at which it was asked."""
        reply = [[0, 16383, [host, 7000, b"id"]]]
        assert find(topology, {A: reply}, LOW)[0] == Address("a", 7000)

    def test_nobody_answers(self, topology):
        """The call waits for a node, and the map is asked for again."""
        with pytest.raises(UnavailableError, match="no node of the cluster says which slots"):
            find(topology, {A: DOWN, B: DOWN})
        assert topology.place(LOW) is None

    def test_a_server_in_no_cluster(self, topology):
        """That is no trouble that passes."""
        with pytest.raises(UnsupportedServerError):
            find(topology, {A: UnsupportedServerError("in no Cluster")})

    def test_a_slot_without_a_node(self, topology):
        """Only its own keys wait."""
        half = slots((0, 8191, A))
        with pytest.raises(ClusterMovingError, match="no node of the cluster serves slot 15495"):
            find(topology, {A: half}, HIGH)
        assert find(topology, {A: half}, LOW)[0] == A
        assert topology.place(LOW) == A
        assert topology.place(HIGH) is None

    def test_moved_changes_one_slot_at_once(self, topology, clock):
        """And has the map read again, once a second at most: one slot after another may be moving."""
        find(topology, {A: HALVES}, LOW)
        moved = RedirectedError("MOVED", 15495, Address("", 7001), asking=False)
        assert topology.failed(moved, B) is False
        assert topology.place(HIGH) == moved.address == Address("b", 7001)
        clock[0] += 1.0
        topology.failed(RedirectedError("MOVED", 15495, C, asking=False), B)
        assert topology.place(LOW) is None
        assert find(topology, {A: HALVES}, HIGH)[0] == B

    def test_ask_changes_nothing(self, topology):
        """The slot is still where it was, for everybody else."""
        find(topology, {A: HALVES}, LOW)
        assert topology.failed(RedirectedError("ASK", 15495, C, asking=True), B) is False
        assert topology.place(HIGH) == B

    def test_a_node_that_failed_is_asked_last(self, topology):
        """Its own view is the oldest. Its connection is of no more use; after TRYAGAIN it is."""
        find(topology, {A: HALVES}, LOW)
        assert topology.failed(ClusterMovingError("TRYAGAIN"), A) is False
        assert topology.failed(DOWN, A) is True
        _, asked = find(topology, {B: HALVES}, LOW)
        assert [each.address for each in asked] == [B]

    def test_a_call_without_a_key_goes_to_a_master_that_serves(self, topology):
        """Any will do, so the one that told of the slots and not one that failed; where a replica told, the first."""
        thirds = slots((0, 5000, A), (5001, 9999, B), (10000, 16383, C))
        assert find(topology, {A: thirds})[0] == A
        topology.failed(DOWN, A)
        assert find(topology, {B: thirds})[0] == topology.place(None) == B
        assert topology.place("n:{b}:ready") == A
        topology.failed(DOWN, B)
        assert find(topology, {A: DOWN, C: thirds})[0] == C
        replica = topology_of(ServerURL.parse("redis+cluster://r"))
        assert find(replica, {Address("r", 6379): thirds})[0] == A
