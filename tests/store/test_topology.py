"""Which server a call goes to: the questions of a search, and what errors teach. Without a server."""

from __future__ import annotations

import pytest

from qworker.errors import (
    ClusterMovingError,
    InDoubtError,
    InvalidOptionError,
    ReadOnlyError,
    SlotUnservedError,
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


def find(topology, answers, key=None, asked=None):
    """Run a search with an answer per address; returns the server, and the questions, which `asked` gets too."""
    asked = [] if asked is None else asked
    search, answer = topology.search(key), None
    while True:
        try:
            question = search.send(answer)
        except StopIteration as result:
            return result.value, asked
        asked.append(question)
        answer = answers[question.address]


def turns(topology, answers, key=None):
    """Run a search; returns the servers that were asked, each with the seconds that it got."""
    _, asked = find(topology, answers, key)
    return [(question.address, question.within_s) for question in asked]


def slots(*ranges):
    """Return a reply of CLUSTER SLOTS."""
    return [
        [first, last, [node.host.encode(), node.port, b"id", []]] for first, last, node in ranges
    ]


HALVES = slots((0, 8191, A), (8192, 16383, B))


class TestStandalone:
    """One server."""

    @pytest.mark.parametrize(
        ("url", "address"),
        [("redis://a", A), ("unix:///run/s", Address("/run/s", 0))],
    )
    def test_never_changes(self, url, address):
        """No search asks anything, for any key and after any error."""
        topology = topology_of(ServerURL.parse(url))
        assert topology.failed(DOWN, address) is True
        assert topology.node(LOW) == topology.node(None) == address
        assert topology.masters() == (address,)
        assert find(topology, {}) == (address, [])
        topology.accept(Hello(role="replica"), address)


class TestSentinel:
    """A master that Sentinels name."""

    @pytest.fixture
    def topology(self):
        return topology_of(ServerURL.parse("redis+sentinel://a,b,c/main"))

    S = tuple(Address(name, 26379) for name in "abc")
    NAMED = (b"m", b"7000")
    MASTER = Address("m", 7000)

    def test_asks_one_sentinel_after_the_other(self, topology):
        """The first one that answers is believed, and asked first next time."""
        assert topology.node(None) is None
        server, asked = find(topology, {self.S[0]: DOWN, self.S[1]: self.NAMED})
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
        assert server == self.MASTER
        assert asked == [
            Question(address, words, sentinel=True, within_s=0.25) for address in self.S[:2]
        ]
        assert topology.node(LOW) == topology.node(None) == self.MASTER
        assert topology.masters() == (self.MASTER,)
        _, asked = find(topology, {self.S[1]: self.NAMED})
        assert [question.address for question in asked] == [self.S[1]]

    def test_asks_again_after_trouble(self, topology):
        """A master that failed is searched for again; an error of an earlier master changes nothing."""
        find(topology, {self.S[0]: self.NAMED})
        assert topology.failed(InDoubtError("silence"), Address("older", 1)) is True
        assert topology.node(None) == self.MASTER
        assert topology.failed(ReadOnlyError("READONLY"), self.MASTER) is True
        assert topology.node(None) is None

    def test_refuses_a_replica(self, topology):
        """Sentinels keep naming the old master for a while."""
        find(topology, {self.S[0]: self.NAMED})
        topology.accept(Hello(role="master"), self.MASTER)
        with pytest.raises(ReadOnlyError, match="m:7000 should be the master and is a replica"):
            topology.accept(Hello(role="replica"), self.MASTER)
        assert topology.node(None) is None

    def test_a_service_that_no_sentinel_knows(self, topology):
        """All Sentinels answer and none knows the name: the URL is wrong."""
        with pytest.raises(
            InvalidOptionError, match="the service 'main', which its Sentinels do not"
        ):
            find(topology, dict.fromkeys(self.S))

    def test_a_silent_one_does_not_hold_up_the_search(self, topology):
        """Each gets a quarter of a second, and a second after all others: then it may only be far away."""
        answers = {self.S[0]: DOWN, self.S[1]: DOWN, self.S[2]: None}
        with pytest.raises(UnavailableError):
            find(topology, answers)
        answers[self.S[2]] = self.NAMED
        assert turns(topology, answers) == [(sentinel, 0.25) for sentinel in self.S]

        class Far(dict):
            def __missing__(self, address):
                self[address] = TestSentinel.NAMED
                return DOWN

        assert turns(topology_of(ServerURL.parse("redis+sentinel://a,b/main")), Far()) == [
            (self.S[0], 0.25),
            (self.S[1], 0.25),
            (self.S[0], 1.0),
        ]
        assert turns(
            topology_of(ServerURL.parse("redis+sentinel://a/main")),
            answers | {self.S[0]: self.NAMED},
        ) == [(self.S[0], 1.0)]

    def test_no_sentinel_answers(self, topology):
        """A silent Sentinel may be the one that knows the service."""
        with pytest.raises(UnavailableError, match="no Sentinel names the master; down"):
            find(topology, {self.S[0]: None, self.S[1]: DOWN, self.S[2]: None})


class TestCluster:
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
        """One node reports the slots of all; the hash tag of a key decides."""
        assert topology.node(LOW) is None
        assert find(topology, {A: HALVES}, LOW) == (
            A,
            [Question(A, ("CLUSTER", "SLOTS"), within_s=0.25)],
        )
        assert [topology.node(key) for key in (LOW, HIGH, b"n:{a}:x", None)] == [A, B, B, A]
        assert topology.masters() == (A, B)

    def test_asks_the_next_node(self, topology):
        """A node that is down, or knows no slots, is skipped."""
        assert find(topology, {A: DOWN, B: HALVES}, HIGH)[0] == B
        topology = topology_of(ServerURL.parse("redis+cluster://a,b"))
        assert find(topology, {A: [], B: HALVES}, HIGH)[0] == B

    @pytest.mark.parametrize("host", [b"", None, b"?"])
    def test_a_node_that_does_not_know_its_address(self, topology, host):
        """It has the address that was asked."""
        reply = [[0, 16383, [host, 7000, b"id"]]]
        assert find(topology, {A: reply}, LOW)[0] == Address("a", 7000)

    def test_no_node_answers(self, topology):
        """The call fails, and the next one asks for the map again."""
        with pytest.raises(UnavailableError, match="no node of the Cluster says which slots"):
            find(topology, {A: DOWN, B: DOWN})
        assert topology.node(LOW) is None

    def test_a_server_that_is_not_in_a_cluster(self, topology):
        """The search ends: other nodes would not help."""
        with pytest.raises(UnsupportedServerError):
            find(topology, {A: UnsupportedServerError("not in a Cluster")})

    def test_a_slot_without_a_node(self, topology):
        """Only calls for its keys fail."""
        half = slots((0, 8191, A))
        with pytest.raises(ClusterMovingError, match="no node of the Cluster serves slot 15495"):
            find(topology, {A: half}, HIGH)
        assert find(topology, {A: half}, LOW)[0] == A
        assert topology.node(LOW) == A
        assert topology.node(HIGH) is None

    def test_a_map_without_a_node_is_believed_for_a_moment(self, topology, clock):
        """Calls for many such slots read it once; a later call reads it again."""
        half = slots((0, 8191, A))
        for seconds, questions in ((0.0, [A]), (0.2, []), (0.1, [A])):
            clock[0] += seconds
            asked = []
            with pytest.raises(SlotUnservedError, match="slot 15495"):
                find(topology, {A: half}, HIGH, asked)
            assert [question.address for question in asked] == questions

    def test_moved_changes_one_slot_at_once(self, topology, clock):
        """The map is also read again, at most once a second: slots move one by one."""
        find(topology, {A: HALVES}, LOW)
        moved = RedirectedError("MOVED", 15495, Address("", 7001), asking=False)
        assert topology.failed(moved, B) is False
        assert topology.node(HIGH) == moved.address == Address("b", 7001)
        clock[0] += 1.0
        topology.failed(RedirectedError("MOVED", 15495, C, asking=False), B)
        assert topology.node(LOW) is None
        assert find(topology, {A: HALVES}, HIGH)[0] == B

    def test_ask_changes_nothing(self, topology):
        """The slot is still on its old node for other calls."""
        find(topology, {A: HALVES}, LOW)
        assert topology.failed(RedirectedError("ASK", 15495, C, asking=True), B) is False
        assert topology.node(HIGH) == B

    def test_a_node_that_failed_is_asked_last(self, topology):
        """A node that failed may know an old map. Its connection is dropped, but not after TRYAGAIN."""
        find(topology, {A: HALVES}, LOW)
        assert topology.failed(ClusterMovingError("TRYAGAIN"), A) is False
        assert topology.failed(DOWN, A) is True
        _, asked = find(topology, {B: HALVES}, LOW)
        assert [question.address for question in asked] == [B]

    def test_a_silent_node_does_not_hold_up_the_search(self, topology):
        """It gets a quarter of a second; after all others a second, since it may only be far away, or busy."""
        assert turns(topology, {A: InDoubtError("silence"), B: HALVES}) == [(A, 0.25), (B, 0.25)]
        topology = topology_of(ServerURL.parse("redis+cluster://a,b"))
        with pytest.raises(UnavailableError):
            find(topology, {A: DOWN, B: DOWN})
        search = topology.search(LOW)
        asked = [search.send(None), search.send(DOWN), search.send(DOWN)]
        assert [(each.address, each.within_s) for each in asked] == [(A, 0.25), (B, 0.25), (A, 1.0)]
        with pytest.raises(StopIteration):
            search.send(HALVES)

    def test_a_node_that_failed_is_asked_last_until_it_sends_a_map(self, topology):
        """A frozen one would hold up each search that a moved slot causes."""
        thirds = slots((0, 5000, A), (5001, 9999, B), (10000, 16383, C))
        find(topology, {A: thirds})
        topology.failed(DOWN, A)
        find(topology, {B: thirds})
        for _ in range(2):
            topology.failed(ClusterMovingError("TRYAGAIN"), B)
            assert turns(topology, {B: thirds}) == [(B, 0.25)]
        topology.failed(DOWN, B)
        topology.failed(DOWN, C)
        assert find(topology, {A: thirds, B: DOWN, C: DOWN})[0] == A
        topology.failed(ClusterMovingError("TRYAGAIN"), A)
        assert turns(topology, {A: thirds}) == [(A, 0.25)]

    def test_a_call_without_a_key_goes_to_a_master_that_answers(self, topology):
        """It goes to the master that sent the map, not to one that failed."""
        thirds = slots((0, 5000, A), (5001, 9999, B), (10000, 16383, C))
        assert find(topology, {A: thirds})[0] == A
        topology.failed(DOWN, A)
        assert find(topology, {B: thirds})[0] == topology.node(None) == B
        assert topology.node("n:{b}:ready") == A
        topology.failed(DOWN, B)
        assert find(topology, {A: DOWN, C: thirds})[0] == C

    def test_a_replica_sends_the_map(self):
        """It serves calls with keys; before a call without one, masters are asked until one answers."""
        replica = Address("r", 6379)
        thirds = slots((0, 5000, A), (5001, 9999, B), (10000, 16383, C))
        for first in (None, LOW):
            topology = topology_of(ServerURL.parse("redis+cluster://r"))
            if first:
                assert find(topology, {replica: thirds}, first)[0] == A
                assert topology.node(None) is None
            server, asked = find(topology, {replica: thirds, A: DOWN, B: thirds})
            assert server == topology.node(None) == B
            assert [question.address for question in asked][-2:] == [A, B]
        topology = topology_of(ServerURL.parse("redis+cluster://r"))
        with pytest.raises(UnavailableError, match="no node of the Cluster says"):
            find(topology, {replica: thirds, A: DOWN, B: DOWN, C: DOWN})
        assert topology.node(LOW) is None
