"""For every script a call that it takes, and what it refuses in place of it: keys of another type, and arguments.

`REFUSALS` has a row per script; `test_refusals.py` holds it against the headers, so a script without its row fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import structs

from qworker.engine.command import Word
from qworker.engine.poll import MAX_POLLED
from qworker.wire.calls import GroupMember, MemberCall, Spec, write_spec
from qworker.wire.keys import queues_key, shared_limits_key
from tests.lua.drive import BAD_NUMBERS, NOW, READY_PARTS, STANDARD_PARTS, Drive, own

__all__ = ["REFUSALS", "Call", "Refusals"]

_HOUR_MS = 3_600_000
_TOO_LONG = 12 * _HOUR_MS + 1
#: What no number may be whose place may be left empty.
_BAD_IF_GIVEN = [bad for bad in BAD_NUMBERS if bad]
_BAD_SHARDS = [*BAD_NUMBERS, 0, 65]
_BAD_ENTRY_IDS = [
    "", "x", "-", "+", "*", "1", "5-", "(1-1", "1-1 ", "1-2-3", f"{2**64}-1", f"1-{2**64}",
]  # fmt: skip
_BAD_SEEN = ["x", "0", "0:", ":1", "10:1", "t:1", "0:-1", "0:1.5", "0:1e9", "- - -:1"]
_BAD_ITEMS = ["{}", "", "q2 a 1\nx", "q1 a 1 0 0 0 0", "hello"]
_OF_GROUPS = ["groups", "turns", "children", "later", "slots", "limits"]
_BAD_CURSORS = ["x", "-1", "1.5", "nan", "inf", "1e99", "9" * 21]


@dataclass(frozen=True)
class Call:
    """The keys and arguments of one call of a script."""

    keys: tuple[str, ...]
    words: tuple[Word, ...] = ()

    def but(self, changed: Mapping[int, Word]) -> Call:
        """The call with other words, each by its number in ARGV."""
        return replace(
            self, words=tuple(changed.get(n, word) for n, word in enumerate(self.words, 1))
        )

    def more(self, *words: Word) -> Call:
        """The call with words after its own."""
        return replace(self, words=(*self.words, *words))

    def only(self, number: int) -> Call:
        """The call with the first of its words."""
        return replace(self, words=self.words[:number])

    def on(self, *keys: str) -> Call:
        """The call on other keys."""
        return replace(self, keys=keys)


def _none(_: Drive, __: Call) -> Iterable[Call]:
    return ()


@dataclass(frozen=True)
class Refusals:
    """What one script refuses.

    `given` fills the queue and returns a call that is taken. `parts` are the keys whose types are checked, None for all
    of the call. `words` has what is refused in place of a word, by its number in ARGV; `calls` are others that are
    refused, `largest` such that are taken.
    """

    given: Callable[[Drive], Call]
    parts: Sequence[str] | None = None
    words: Mapping[int, Sequence[Word]] = field(default_factory=dict)
    calls: Callable[[Drive, Call], Iterable[Call]] = _none
    largest: Callable[[Drive, Call], Iterable[Call]] = _none


# -- queues that calls are made to -----------------------------------------------------------------


def _keys(drive: Drive, *parts: str) -> tuple[str, ...]:
    return tuple(drive.base + part for part in parts)


def _on_parts(*parts: str, words: Sequence[Word]) -> Callable[[Drive], Call]:
    """A call on these keys of an empty queue."""
    return lambda drive: Call(_keys(drive, *parts), tuple(words))


def _received(*leases: str, words: Sequence[Word]) -> Callable[[Drive], Call]:
    """A call on the standard keys and leases; two messages are held in L, one of another level is ready."""

    def given(drive: Drive) -> Call:
        drive.send("a", "b")
        drive.receive("L")
        drive.send("p", priority=5)
        drive.redis.hset(drive.keys.stats, "reaped_ms", NOW + 30_000)
        return Call(drive.standard_keys(*leases), tuple(words))

    return given


def _shared(words: Sequence[Word]) -> Callable[[Drive], Call]:
    """A call on the limits of the namespace, of which there is one over several queues."""

    def given(drive: Drive) -> Call:
        key = shared_limits_key(drive.namespace)
        drive.redis.hset(key, "acme/", "c=2 v=1")
        return Call((key,), tuple(words))

    return given


def _in_every_state(words: Sequence[Word]) -> Callable[[Drive], Call]:
    """A call on the standard keys, with messages in every state and of several levels."""

    def given(drive: Drive) -> Call:
        drive.send("u")
        drive.receive("L")
        drive.send("a", ttl_ms=1)
        drive.send("p", priority=5)
        drive.send("d", delay_ms=1)
        drive.redis.rpush(drive.keys.suspect, own("s"))
        drive.redis.xadd(drive.keys.dead, {"envelope": own("x")})
        return Call(drive.standard_keys(), tuple(words))

    return given


def _waiting(*first: Word) -> Callable[[Drive], Call]:
    """A call for two messages that wait, one of them delayed; a plain one stands beside them."""

    def given(drive: Drive) -> Call:
        drive.send("a", priority=5)
        drive.send("b", delay_ms=10)
        drive.redis.rpush(drive.keys.ready[0], "{}")
        return Call(drive.standard_keys(), (*first, own("a"), own("b", ready_ms=NOW + 10)))

    return given


def _of_items(first: int) -> Callable[[Drive, Call], Iterable[Call]]:
    """No items, too many, and those that are not ours; the items come after `first` words."""

    def calls(_: Drive, call: Call) -> Iterable[Call]:
        call = call.only(first)
        return [
            call,
            call.more(*[own("a")] * 101),
            *(call.more(own("a"), bad) for bad in _BAD_ITEMS),
        ]

    return calls


def _dead_letter(*words: Word) -> Callable[[Drive], Call]:
    """A call for a dead letter, its entry id before `words`."""

    def given(drive: Drive) -> Call:
        drive.redis.hset(drive.keys.meta, "levels", "5")
        entry = drive.redis.xadd(drive.keys.dead, {"envelope": own("a"), "reason": "rejected"})
        return Call(drive.standard_keys(), (NOW, entry.decode(), *words))

    return given


def _of_entries(_: Drive, call: Call) -> Iterable[Call]:
    many = [f"1-{number}" for number in range(1, 102)]
    return [call.only(1).more(*many), *(call.more(bad) for bad in _BAD_ENTRY_IDS)]


def _polled(drive: Drive) -> Call:
    keys = drive.keys
    return Call((*keys.ready, keys.suspect, keys.wake, keys.meta))


# -- single scripts --------------------------------------------------------------------------------


def _begun(drive: Drive) -> Call:
    """An import has begun."""
    drive.redis.hset(drive.keys.imported, "run", "one")
    keys = _keys(drive, "ready", "delayed", "wake", "meta", "stats", "imported", "journal")
    return Call(keys, (NOW, "one", 0, 0, 1, ":a", 0, 0, 0, 0, "q1 a ", "\na"))


def _run(drive: Drive) -> Call:
    """A message is held, alone in its lease."""
    drive.send("a")
    drive.receive("L")
    return Call(_keys(drive, "meta", "runs", "run:a", "lease:L"), (NOW, "a", "0", "", "", "n", "v"))


def _looped(drive: Drive) -> Call:
    """The same, for a loop."""
    call = _run(drive)
    return Call(call.keys, (NOW, "a", "0", "", "", "*rows", 5, "v", "rows[1].n"))


def _signalled(drive: Drive) -> Call:
    """A run is known."""
    drive.send("p", priority=5)
    drive.redis.zadd(drive.keys.runs, {"a": NOW})
    keys = (*drive.standard_keys(), *_keys(drive, "run:a", "runs"))
    return Call(keys, (NOW, "a", "!go", "v", "", ""))


def _spec(**changed: object) -> bytes:
    """A group of one call."""
    member, then = MemberCall("b", 0, "", "", "q1 g.0 ", b"\nx"), (0, "", "", "q1 g ", b"\ny")
    spec = Spec("g", 1, "all", 0, [member], then)
    return write_spec(structs.replace(spec, **changed))


#: What no spec may be.
_BAD_SPECS: Final = [
    "",
    "x",
    b"\x80",
    _spec(id="h"),
    _spec(size=0),
    _spec(size=10_001),
    _spec(policy="any"),
    _spec(first=1),
    _spec(start=b""),
    _spec(start=b"s"),
    _spec(start=b"s", keep=0),
    _spec(then=None),
    _spec(then=(0, "", "", "q1 h ", b"\ny")),
    _spec(then=(10, "", "", "q1 g ", b"\ny")),
    _spec(members=[MemberCall("B", 0, "", "", "q1 g.0 ", b"\nx")]),
    _spec(members=[MemberCall("b", 0, "x", "", "q1 g.0 ", b"\nx")]),
    _spec(members=[MemberCall("b", 0, "", "", "g.0", b"\nx")]),
    _spec(members=[MemberCall("b", 0, "", "", "q1 g.0 ", b"x")]),
    _spec(members=[GroupMember("b", "g.0", [])]),
    _spec(queues=["B"]),
    _spec(queues=["b"] * 1001),
    *(_spec(rest=rest) for rest in ("b", {"B": " 0-1"}, {"b": 1}, {"b": " x"})),
    _spec(rest={}, members=[GroupMember("b", "g.0", [b"x"])]),
]


def _gathered(drive: Drive) -> Call:
    """A message of a second level is ready."""
    drive.send("p", priority=5)
    keys = (*drive.standard_keys(), *_keys(drive, "producers"))
    return Call(keys, (NOW, "out-a1", 1, 1, "g", 0, "ok\n1"))


def _scheduled(drive: Drive) -> Call:
    """The queue has a schedule."""
    spec = '{"cron": "* * * * *"}'
    drive.redis.hset(drive.keys.schedules, "nightly", spec)
    parts = (
        "ready",
        "delayed",
        "wake",
        "meta",
        "stats",
        "schedules",
        "unique",
        "cancelled",
        "journal",
    )
    words = (NOW, "nightly", NOW - 10, spec, 0, 0, "q1 a ", "\nA", 0, "key", "skip")
    return Call(_keys(drive, *parts), words)


def _send_calls(_: Drive, call: Call) -> Iterable[Call]:
    unkeyed = call.only(9)
    yield unkeyed.more("q1 a ", "\nA", 0)  # two messages of one
    yield call.only(6).more(0, 0)  # none
    yield unkeyed.more(1, 1, "key")
    yield unkeyed.more(2, 1, "key", 1)
    for bad in [*BAD_NUMBERS, 0, 2]:
        yield unkeyed.more(1, bad, "key", 1000)
    for bad in [*BAD_NUMBERS, 0, "=0", "~", "~-1", "=~1", "for 5"]:
        yield unkeyed.more(1, 1, "key", bad)
    for bad in [*BAD_NUMBERS, 0]:
        yield unkeyed.more(0, bad)  # maxlen
        yield unkeyed.more(1, 1, "key", 1000, bad)


def _chunk_calls(_: Drive, call: Call) -> Iterable[Call]:
    one, two, none = call.only(14), call.but({13: 2}).only(14).more("B"), call.only(12).more(0)
    yield none.more(0)
    yield call.only(14).more("A", 0)
    yield one.more(1, "", "")
    yield one.more(0, "")
    yield two.more(1, "", "", "")
    for bad in _BAD_IF_GIVEN:
        yield one.more(1, bad, "", "")
        yield one.more(1, "", bad, "")


def _settle_calls(drive: Drive, call: Call) -> Iterable[Call]:
    acked = call.only(6)

    def other(*words: Word) -> Call:
        return acked.more(1, *words)

    for bad in BAD_NUMBERS:
        yield other("n", "2", bad, "", "", "", "", "", 0)
        yield other("r", "2", bad, "", "", "", "", "", 0)
    for bad in [*_BAD_IF_GIVEN, "0", "1000000", "9" * 40]:
        yield other("n", "2", 0, bad, "", "", "", "", 0)
    for bad in _BAD_IF_GIVEN:
        yield other("n", "2", 0, "", bad, "", "", "", 0)
    for kind in ("x", "", "nr", "*", "."):
        yield other(kind, "2", 0, "", "", "", "", "", 0)
    for times in ("x", "1 2", "1 2 a b", "1 2 a\n", " 1 2 a", "1 2! a", "1 2 " + "a" * 512):
        yield other("n", "2", 0, "", "", "", "", times, 0)
    for bad in [*BAD_NUMBERS, 10_001]:
        yield other("n", "2", 0, "", "", "", "", "", bad)
    ends: list[tuple[Word, ...]] = [(), (1,), (0, "x"), ("x", "x"), (1, "x" * 16_385)]
    for end in ends:
        yield other("n", "2", 0, "", "", "", "", "", 1, *end)
    for start in (("n", "2", 0, "", "", "", ""), ("n", "2", 0, "", "", ""), ("n",), ()):
        yield other(*start)
    keys = drive.standard_keys
    yield Call(keys(), (NOW, "", 1, 0, 0, 0, 0))
    yield Call(keys("L", "x y"), (NOW, "", 2, *[0] * 8))


def _settle_receive_calls(drive: Drive, call: Call) -> Iterable[Call]:
    start = call.only(6)
    for bad in [*BAD_NUMBERS, 65, 2, 3]:
        yield start.more(bad)
    for bad in [*BAD_NUMBERS, 10_001]:
        for place in range(4):
            counts: list[Word] = [0] * 4
            counts[place] = bad
            yield start.more(1, *counts)
    yield start.more(1)
    yield start.more(1, 2, "1")
    yield start.more(1, 0, 1, "1")
    yield start.more(0).on(*drive.standard_keys(), drive.base + "lease:bad id")


def _split_calls(drive: Drive, call: Call) -> Iterable[Call]:
    unacked, meta, old, new = call.keys
    for leases in [(old, drive.base + "x"), (drive.base + "x", new), (old, new + " ")]:
        yield call.on(unacked, meta, *leases)


def _split_all_calls(drive: Drive, call: Call) -> Iterable[Call]:
    unacked, meta, old, new = call.keys
    start, another, third = call.only(2), drive.keys.lease("M"), drive.keys.lease("O")
    indices: list[tuple[Word, ...]] = [
        (), (0,), (2, 1), (1,), (1, 1, 1), ("x", 1), (1, 1, 1, 1), (1064, *range(1, 1065)),
    ]  # fmt: skip
    for words in indices:
        yield start.more(*words)
    for leases in [(old,), (old, drive.base + "x"), (drive.base + "x", new), (old, new + " ")]:
        yield call.on(unacked, meta, *leases)
    # The same key twice: old twice, new twice, one for both.
    for leases in [(old, new, old, third), (old, new, another, new), (old, old, another, new)]:
        yield start.more(1, 1, 1, 2).on(unacked, meta, *leases)
    yield start.more(*[1, 1] * 65).on(unacked, meta, *[old, new] * 65)


def _swept(drive: Drive) -> Call:
    drive.redis.zadd(drive.keys.unacked, {"L": NOW})
    return Call(_keys(drive, "meta", "delayed", "unacked", "ready", "stats"), (NOW, 1000, 10))


def _journalled(drive: Drive) -> Call:
    drive.redis.hset(drive.keys.meta, "journal", "all")
    return Call((drive.keys.meta,), (NOW, 1))


_EVERY_LEVEL = [*STANDARD_PARTS, *READY_PARTS[1:5]]
_SPOT = ("0", "", "", own("a"))

REFUSALS: Final[Mapping[str, Refusals]] = {
    # -- send
    "send": Refusals(
        lambda drive: Call(drive.sending_keys(), (NOW, "l", 1, 0, 0, 0, 1, "q1 a ", "\nA", 0)),
        words={
            3: BAD_NUMBERS,
            4: [*_BAD_IF_GIVEN, 2**53 + 2, *(f"@{bad}" for bad in BAD_NUMBERS)],
            5: _BAD_IF_GIVEN,
            6: [*BAD_NUMBERS, 10],
            7: [*BAD_NUMBERS, 0, 2, 1001],
            10: [bad for bad in BAD_NUMBERS if bad != ""],
        },
        calls=_send_calls,
    ),
    "send_chunk": Refusals(
        _on_parts(
            *("ready", "delayed", "wake", "meta", "stats", "rows", "bulk:w", "journal"),
            words=(NOW, "0.0", 0, 0, 11, "r", 60_000, 0, 0, 0, 0, "a" * 10, 1, "A", 0),
        ),
        words={
            3: BAD_NUMBERS,
            7: [*BAD_NUMBERS, 0],
            8: BAD_NUMBERS,
            9: [*BAD_NUMBERS, 10],
            10: _BAD_IF_GIVEN,
            11: _BAD_IF_GIVEN,
            13: [*BAD_NUMBERS, 0, 2, 1001],
            15: BAD_NUMBERS,
        },
        calls=_chunk_calls,
    ),
    "accept": Refusals(
        _on_parts(
            *("ready", "delayed", "wake", "meta", "stats", "producers", "journal"),
            words=(NOW, "out-a1", 0, 1, 1, 0, 0, "q1 a ", "\nA"),
        ),
        words={
            2: ["", "a1", "out-", "out-x y"],
            3: [*BAD_NUMBERS, 10],
            4: [*BAD_NUMBERS, 0, 2, 1001],
            5: [*BAD_NUMBERS, 0],
            6: _BAD_IF_GIVEN,
            7: _BAD_IF_GIVEN,
            8: ["a", "q1 a", "q1 a b "],
        },
        calls=lambda drive, call: [call.more(1, 0, 0, "q1 b ", "\nB"), call.more("more")],
    ),
    "tell": Refusals(
        _on_parts("producers", "meta", words=(NOW, "out-a1", 1, 1, "a", 1000, "dead x\n")),
        words={
            2: ["", "a1", "out-", "out-x y"],
            3: [*BAD_NUMBERS, 0, 2, 1001],
            4: [*BAD_NUMBERS, 0],
            5: ["", "a b", "a:b"],
            6: [*BAD_NUMBERS, 0],
        },
        calls=lambda drive, call: [call.more(1, "b", 1, ""), call.more("more")],
    ),
    "forward": Refusals(
        _on_parts("out", "out:b", "meta", words=(NOW, "b", "", 0, 10)),
        words={4: BAD_NUMBERS, 5: [*BAD_NUMBERS, 1001]},
        calls=lambda drive, call: [call.only(4)],
    ),
    "fire": Refusals(
        _scheduled,
        words={
            3: BAD_NUMBERS,
            5: [*BAD_NUMBERS, 10],
            6: _BAD_IF_GIVEN,
            9: BAD_NUMBERS,
            11: ["", "allow", "s", "skipped"],
        },
        calls=lambda drive, call: [call.only(number) for number in (8, 9, 10)],
    ),
    "take_over": Refusals(
        _begun,
        words={
            3: [*BAD_NUMBERS, 10],
            4: [*BAD_NUMBERS, 1, 1001],
            5: [*BAD_NUMBERS, 0, 2, 1001],
            6: ["run"],
            7: BAD_NUMBERS,
            8: _BAD_IF_GIVEN,
            9: BAD_NUMBERS,
            10: [*BAD_NUMBERS, 1_000_000],
            11: ["q1 a", "a", "q1  ", "q2 a ", "q1 a b "],
        },
        calls=lambda drive, call: [call.more("more")],
    ),
    # -- deliver
    "claim": Refusals(
        _received("L", "N", words=(NOW, 0, 10, 5000, "", NOW + 30_000)),
        parts=[*STANDARD_PARTS, "lease:L", "lease:N"],
        words={3: [*BAD_NUMBERS, 0, 1001], 4: [*_BAD_IF_GIVEN, 0, _TOO_LONG]},
        calls=lambda drive, call: [
            call.only(5),
            call.more(NOW),
            call.more(*[NOW] * 64).on(*drive.standard_keys(*(f"L{n}" for n in range(65)), "N")),
        ],
    ),
    "extend": Refusals(
        _on_parts("unacked", "meta", "cancelled", words=(NOW, 1000, "L")),
        words={2: [*BAD_NUMBERS, 0, _TOO_LONG]},
        calls=lambda drive, call: [call.more(*(f"L{number}" for number in range(1000)))],
        largest=lambda drive, call: [call.more(*(f"L{number}" for number in range(999)))],
    ),
    "poll": Refusals(
        _polled,
        parts=(),
        calls=lambda drive, call: [
            call.on(*call.keys[:12]),
            call.on(*call.keys * (MAX_POLLED + 1)),
        ],
        largest=lambda drive, call: [call.on(*call.keys * MAX_POLLED)],
    ),
    "conclude": Refusals(
        _received("L", words=(NOW, "", 1, 1, "1", 0, 0, 0)),
        parts=[*(part for part in STANDARD_PARTS if part != "wake"), "lease:L"],
        calls=_settle_calls,
    ),
    "settle": Refusals(
        _received("L", words=(NOW, "", 1, 1, "1", 0, 0, 0)),
        parts=[*(part for part in STANDARD_PARTS if part != "wake"), "lease:L"],
        calls=_settle_calls,
    ),
    "settle_receive": Refusals(
        _received("L", "M", words=(NOW, 0, 10, 30_000, 1, "", 1, 1, "1", 0, 0, 0)),
        parts=[*STANDARD_PARTS, "lease:L", "lease:M"],
        words={
            3: [*BAD_NUMBERS, 1001],
            4: [*_BAD_IF_GIVEN, 0, _TOO_LONG],
            5: [*BAD_NUMBERS, 3],
        },
        calls=_settle_receive_calls,
    ),
    "split": Refusals(
        _on_parts("unacked", "meta", "lease:L", "lease:N", words=(NOW, "1", 1000)),
        words={3: [*_BAD_IF_GIVEN, _TOO_LONG]},
        calls=_split_calls,
    ),
    "split_all": Refusals(
        _on_parts("unacked", "meta", "lease:L", "lease:N", words=(NOW, 1000, 1, 1)),
        words={2: [*_BAD_IF_GIVEN, 0, _TOO_LONG]},
        calls=_split_all_calls,
    ),
    # -- reap
    "promote": Refusals(
        _in_every_state((NOW, 100)),
        parts=[*READY_PARTS, "delayed", "wake", "dead", "meta", "stats", "unique", "cancelled"],
        words={2: [*BAD_NUMBERS, 0, 5001]},
    ),
    "prune": Refusals(
        _on_parts(
            *("producers", "unique", "rows", "cancelled", "meta", "stats"),
            words=(NOW, 9, "0", "0", "0"),
        ),
        words={2: [*BAD_NUMBERS, 0], 3: _BAD_CURSORS, 4: _BAD_CURSORS, 5: _BAD_CURSORS},
        calls=lambda drive, call: [call.only(4)],
    ),
    "reap": Refusals(
        _received("L", words=(NOW + 30_000, 1000, "")),
        parts=STANDARD_PARTS,  # a lease of another type is set aside
        words={2: [*BAD_NUMBERS, 0, 60_001], 3: ["x"]},
    ),
    "recount": Refusals(
        _in_every_state((NOW,)),
        parts=[*READY_PARTS, "suspect", "delayed", "unacked", "meta", "stats"],
    ),
    "shed": Refusals(
        _journalled,
        parts=(),
        words={2: ["2", "", "x", "-1"]},
        calls=lambda drive, call: [call.on(*call.keys, *_keys(drive, *map(str, range(500))))],
    ),
    "sweep": Refusals(
        _swept,
        parts=(),
        words={2: [*BAD_NUMBERS, 0, 60_001], 3: [*BAD_NUMBERS, 0, 101]},
        calls=lambda drive, call: [
            call.on(*call.keys[:1], *call.keys[1:] * 501),
            *(call.more(0, bad) for bad in [*BAD_NUMBERS, 10**9 + 1]),
        ],
    ),
    "trim": Refusals(
        _in_every_state((NOW + 1, 10)),
        parts=STANDARD_PARTS,
        words={2: [*BAD_NUMBERS, 0, 1001]},
    ),
    # -- queue
    "adopt": Refusals(
        _on_parts("meta", words=(NOW, 1, 1, 7)),
        words={2: [*_BAD_SHARDS, 2], 3: _BAD_SHARDS, 4: BAD_NUMBERS},
    ),
    "configure": Refusals(
        _on_parts("meta", "wake", "stats", "journal", words=(NOW, "maxlen", "5")),
        parts=("meta", "wake"),
        calls=lambda drive, call: [call.only(2), call.more("ttl_ms")],
    ),
    "create": Refusals(
        lambda drive: Call(drive.standard_keys(), ("maxlen", "5")),
        parts=(),
        calls=lambda drive, call: [call.only(1)],
    ),
    "divide": Refusals(
        _on_parts("meta", words=(NOW, 0, 1, 1, "")),
        words={2: BAD_NUMBERS, 3: [*_BAD_SHARDS, 2], 4: _BAD_SHARDS},
    ),
    "inspect": Refusals(
        _in_every_state((NOW,)),
        parts=[part for part in {*READY_PARTS, *STANDARD_PARTS} if part != "journal"],
    ),
    "limit": Refusals(
        _in_every_state((NOW, "acme/*", "c=2", "0")),
        parts=["meta", "wake", "delayed", *_OF_GROUPS],
        words={
            2: ["a\n", "x" * 258],
            3: ["c=2!", "c=2\n"],
            4: [*_BAD_CURSORS, "l", "lx", "1 2", "l1 2 y"],
        },
    ),
    "resume_group": Refusals(
        _in_every_state((NOW, "acme/")),
        parts=["meta", "wake", "delayed", *_OF_GROUPS],
        words={2: ["", "a\n", "x" * 257]},
    ),
    "share": Refusals(
        _in_every_state((NOW, "acme/", 7, "c=2 s=7")),
        parts=["meta", "wake", "delayed", *_OF_GROUPS],
        words={
            2: ["acme", "", "*/", "acme/*", "a/b/", "/", "=a/", "a\n/", "x" * 257 + "/"],
            3: BAD_NUMBERS,
            4: ["c=2!", "c=2\n"],
        },
        calls=lambda drive, call: [
            call.only(3),
            call.more("acme/"),
            call.more(*call.words[1:] * 100),
        ],
        largest=lambda drive, call: [call.more(*call.words[1:] * 99)],
    ),
    "allot": Refusals(
        _shared(("acme/", "c=2 v=1", 100, "q", "", "", 0, 2, 0)),
        words={3: [*BAD_NUMBERS, 60_001]},
        calls=lambda drive, call: [call.only(8), call.more("q"), call.more(*call.words[3:] * 100)],
        largest=lambda drive, call: [call.more(*call.words[3:] * 99)],
    ),
    "declare": Refusals(
        _shared(("acme/", "c=2 v=1", "c=3 v=2")),
        words={
            1: ["acme", "", "*/", "acme/*", "a/b/", "/", "=a/", "a\n/", "x" * 257 + "/"],
            3: ["c=2", "v=x"],
        },
        calls=lambda drive, call: [call.only(1), call.only(2)],
    ),
    "turn": Refusals(
        _shared(("me", 1000)), words={1: ["", "x" * 301], 2: [*BAD_NUMBERS, 0, 60_001]}
    ),
    "largest": Refusals(
        _in_every_state((NOW, 10)),
        parts=["meta", "delayed", *_OF_GROUPS],
        words={2: [*BAD_NUMBERS, 0, 101]},
    ),
    "groups": Refusals(
        _in_every_state((NOW, "0")),
        parts=["meta", "delayed", *_OF_GROUPS],
        words={2: [*_BAD_CURSORS, "r", "rx", "r1 2", "r1 x y", "1 2 y"]},
    ),
    "lengths": Refusals(
        _on_parts(*READY_PARTS, "suspect", words=()),
        parts=(),
        calls=lambda drive, call: [call.on(*call.keys[:10]), call.on(*call.keys * 101)],
        largest=lambda drive, call: [call.on(*call.keys * 100)],
    ),
    "mark": Refusals(
        _on_parts("meta", words=(NOW, "open", 1, 7)),
        words={2: ["shut", ""], 3: _BAD_SHARDS, 4: BAD_NUMBERS},
        calls=lambda drive, call: [call.more("maxlen")],
    ),
    "names": Refusals(
        lambda drive: Call((queues_key(drive.namespace),), ("0", 500)),
        words={1: BAD_NUMBERS, 2: [*BAD_NUMBERS, 0, 1001]},
    ),
    "present": Refusals(
        _on_parts("meta", *READY_PARTS, words=()),
        parts=(),
        calls=lambda drive, call: [call.on(*call.keys[:10]), call.on(*call.keys * 251)],
        largest=lambda drive, call: [call.on(*call.keys * 250)],
    ),
    "purge": Refusals(
        _in_every_state((NOW, "ready", 10)),
        parts=STANDARD_PARTS,
        words={2: ["unacked", "", "READY", "suspect"], 3: [*BAD_NUMBERS, 0, 1001]},
    ),
    "remove": Refusals(
        _received("L", words=(0, "L")),
        parts=(),
        words={1: [*BAD_NUMBERS, 2]},
    ),
    "retire": Refusals(
        _on_parts("meta", "stats", words=(NOW, "id-1", "")), words={2: ["", "a b", "a\n", "ä"]}
    ),
    "absorb": Refusals(
        _on_parts("meta", "stats", words=(1, "id-1", "sent", 5)),
        words={1: [*BAD_NUMBERS, 0, 64], 2: ["", "a b", "ä"], 4: [*BAD_NUMBERS, 0]},
        calls=lambda drive, call: [call.only(1), call.only(3), call.more(*["x", 1] * 100)],
    ),
    # -- message
    "cancel": Refusals(
        _on_parts("cancelled", "meta", words=(NOW, "a", 1000)),
        words={2: ["", "a b", "a\n", "ä", "a:b"], 3: [*BAD_NUMBERS, 0]},
    ),
    "delete": Refusals(
        _waiting(NOW, ""), parts=STANDARD_PARTS, words={2: _BAD_SEEN}, calls=_of_items(2)
    ),
    "enqueue": Refusals(_waiting(NOW), parts=STANDARD_PARTS, calls=_of_items(1)),
    "hold": Refusals(
        _waiting(NOW, ""), parts=STANDARD_PARTS, words={2: _BAD_SEEN}, calls=_of_items(2)
    ),
    # -- dead
    "drop": Refusals(_dead_letter(), parts=STANDARD_PARTS, calls=_of_entries),
    "edit": Refusals(
        _dead_letter("1"),
        parts=["dead", "meta"],
        words={2: _BAD_ENTRY_IDS},
        calls=lambda drive, call: [call.only(2), call.more("2"), call.more("", "")],
    ),
    "redrive": Refusals(
        _dead_letter(),
        parts=[*READY_PARTS, "wake", "dead", "meta", "stats", "journal"],
        calls=_of_entries,
    ),
    "revoke": Refusals(
        _received("L", words=(NOW, "L")),
        parts=[*STANDARD_PARTS, "lease:L"],
        calls=lambda drive, call: [
            call.only(1),
            call.on(*drive.standard_keys()),
            call.more(*["L"] * 16).on(*drive.standard_keys(*(f"L{n}" for n in range(17)))),
        ],
    ),
    # -- calls
    "join": Refusals(
        _on_parts(
            *("meta", "stats", "producers", "join:g", "joins"),
            words=(NOW, "out-a1", 1, _spec()),
        ),
        words={2: ["", "a1", "out-", "out-x y"], 3: BAD_NUMBERS, 4: _BAD_SPECS},
        calls=lambda drive, call: [
            call.but({4: _spec(then=None, run=("r", "!go"))}).on(
                *call.keys, f"{drive.base}run:x", f"{drive.base}runs"
            )
        ],
    ),
    "gather": Refusals(
        _gathered,
        parts=[*STANDARD_PARTS, "producers", "joins"],
        words={
            2: ["a1", "out-", "out-x y"],
            3: [*BAD_NUMBERS, 0, 2, 1001],
            4: [*BAD_NUMBERS, 0],
            5: ["", "a b", "a:b"],
            6: BAD_NUMBERS,
            7: ["v" * 1_114_113],
        },
        calls=lambda drive, call: [call.more(1, "g", 1, ""), call.more("more")],
    ),
    "abandon": Refusals(
        lambda drive: Call(drive.standard_keys(), (NOW, "purged", "g")),
        parts=[*STANDARD_PARTS, "joins"],
        words={2: ["x", "dead"]},
        calls=lambda drive, call: [call.only(2), call.more(*["g"] * 100)],
        largest=lambda drive, call: [call.more(*["g"] * 99)],
    ),
    "values": Refusals(
        _on_parts("join:g", words=(0,)),
        words={1: [*BAD_NUMBERS, 100_001]},
    ),
    # -- run
    "recall": Refusals(
        _on_parts("run:a", words=("charge",)),
        calls=lambda drive, call: [call.only(0), call.more(*["n"] * 100)],
        largest=lambda drive, call: [call.more(*["n"] * 99)],
    ),
    "signal": Refusals(
        _signalled,
        parts=[*STANDARD_PARTS, "run:a", "runs"],
        words={
            2: ["", "a b", "b", "ä"],
            3: ["", "!", "x", "! x", "!@x", "!" + "n" * 128],
            4: ["", "v" * 1_114_113],
            6: ["x", "1", "1-", "1-1-1", "9" * 20 + "-1", "1-" + "9" * 20],
        },
        calls=lambda drive, call: [call.only(3), call.only(5)],
    ),
    "feed": Refusals(
        _on_parts("feed:a", words=(60_000, "\n1")),
        words={1: [*BAD_NUMBERS, 0, 2_592_000_001], 2: ["", "v" * 17_409]},
        calls=lambda drive, call: [call.only(1), call.more(*["\n2"] * 100)],
        largest=lambda drive, call: [call.more(*["\n2"] * 99)],
    ),
    # -- worker
    "note": Refusals(
        _on_parts("schedules", words=("HSET", "a", 1)),
        words={
            1: ["SET", "hset", "", "RPUSH", "ZADD"],
            2: ["a" * 513],
            3: ["v" * 65_537],
        },
        calls=lambda drive, call: [
            call.only(1),
            call.only(2),
            call.more("b"),
            call.more(*["b", 1] * 100),
            call.but({1: "HSETNX"}).more("b", 1),
            *(Call(call.keys, ("ZADD", bad, "a")) for bad in BAD_NUMBERS),
            Call(call.keys, ("ZADD", 1, "a" * 513)),
            Call(call.keys, ("RPUSH", "v" * 65_537)),
        ],
        largest=lambda drive, call: [
            call.more(*["b", 1] * 99),
            call.but({2: "a" * 512, 3: "v" * 65_536}),
        ],
    ),
    "inspect_runs": Refusals(
        _on_parts("meta", "delayed", "run:a", words=(NOW,)),
        calls=lambda drive, call: [
            call.on(*call.keys[:2]),
            call.on(*call.keys[:2], *[call.keys[2]] * 101),
        ],
        largest=lambda drive, call: [call.on(*call.keys[:2], *[call.keys[2]] * 100)],
    ),
    "start": Refusals(
        _on_parts(
            "ready",
            "delayed",
            "wake",
            "meta",
            "stats",
            "run:a",
            "runs",
            "cancelled",
            "join:a",
            "journal",
            words=(NOW, "", "", 0, "", "q1 a ", "\nA", "\nstart"),
        ),
        words={
            2: [*_BAD_IF_GIVEN, "@", "@x"],
            3: _BAD_IF_GIVEN,
            4: [*BAD_NUMBERS, 10],
            5: [*_BAD_IF_GIVEN, 0],
            6: ["", "a", "q1 a", "q1 b ", "q1 a b "],
            8: ["", "s" * 1025],
        },
        calls=lambda drive, call: [call.only(7)],
    ),
    "step": Refusals(
        _run,
        parts=["runs", "run:a", "lease:L"],
        words={
            2: ["", "a b", "b", "ä"],
            4: [*_BAD_IF_GIVEN, 0, 2_592_000_001],
            6: ["", "a b", "@bytes", "!", "~x", "n" * 129],
            7: ["", "v" * 1_114_113],
        },
        calls=lambda drive, call: [
            call.only(5),
            call.only(6),
            call.more("n"),
            call.more(*["n", "v"] * 100),
            call.on(*call.keys[:3], drive.base + "x"),
        ],
        largest=lambda drive, call: [call.more(*["n", "v"] * 99)],
    ),
    "position": Refusals(
        _looped,
        parts=["runs", "run:a", "lease:L"],
        words={
            2: ["", "a b", "b", "ä"],
            4: [*_BAD_IF_GIVEN, 0, 2_592_000_001],
            6: ["", "rows", "*", "*a b", "*@bytes", "*" + "n" * 128],
            7: BAD_NUMBERS,
            8: ["", "v" * 1_114_113],
            9: ["", "charge", "row[1].n", "?rows[1].n", "@rows[1].n", "x rows[1].n", "*rows"],
        },
        calls=lambda drive, call: [
            call.only(5),
            call.only(6),
            call.only(7),
            call.more(*["rows[1].n"] * 1000),
            call.on(*call.keys[:3], drive.base + "x"),
        ],
        largest=lambda drive, call: [call.more(*["rows[1].n"] * 999)],
    ),
    # -- repair
    "repair_counters": Refusals(_received("L", words=(NOW, 1)), parts=[*_EVERY_LEVEL, "lease:L"]),
    "repair_item": Refusals(
        _received("L", words=(NOW, 1, "0", "", "", "x")),
        parts=[*_EVERY_LEVEL, "lease:L"],
        words={3: ["x", "", "10"]},
        calls=lambda drive, call: [
            call.only(5),
            call.but({3: "lease", 4: 1, 5: "0"}).on(*drive.standard_keys()),
        ],
    ),
    "repair_key": Refusals(
        _on_parts("ready", "aside:ready:1", "meta", words=(NOW, 1, "list")),
        parts=(),
        calls=lambda drive, call: [call.only(2), call.on(*call.keys[:1])],
    ),
    "repair_lane": Refusals(
        _on_parts("producers", "meta", words=(NOW, 1, "lane")),
        calls=lambda drive, call: [call.only(2)],
    ),
    "repair_lease": Refusals(
        _received("L", words=(NOW, 1, "L")),
        parts=[*_EVERY_LEVEL, "lease:L"],
        calls=lambda drive, call: [call.only(2)],
    ),
    "repair_twice": Refusals(
        _received("L", words=(NOW, 1, *_SPOT, *_SPOT)),
        parts=[*_EVERY_LEVEL, "lease:L"],
        calls=lambda drive, call: [call.only(6)],
    ),
    "repair_join": Refusals(
        _received("L", words=(NOW, 1, 60_000, "gone")),
        parts=[*_EVERY_LEVEL, "lease:L", "runs", "joins"],
        words={3: [*BAD_NUMBERS, 0, 2_592_000_001]},
        calls=lambda drive, call: [call.only(3), call.more(*["id"] * 100)],
        largest=lambda drive, call: [call.more(*["id"] * 99)],
    ),
    "repair_run": Refusals(
        _received("L", words=(NOW, 1, 60_000, "gone")),
        parts=[*_EVERY_LEVEL, "lease:L", "runs"],
        words={3: [*BAD_NUMBERS, 0, 2_592_000_001]},
        calls=lambda drive, call: [call.only(3), call.more(*["id"] * 100)],
        largest=lambda drive, call: [call.more(*["id"] * 99)],
    ),
    "repair_groups": Refusals(
        _in_every_state((NOW, 1, "0")),
        parts=["meta", "wake", "unacked", "delayed", "suspect", *_OF_GROUPS],
        words={3: _BAD_CURSORS},
    ),
    "repair_seats": Refusals(
        _in_every_state((NOW, 1, "")),
        parts=["meta", "wake", "delayed", *_OF_GROUPS],
        words={3: ["x", "-1", "1.5", str(2**52 - 1), str(2**54)]},
    ),
    "repair_unique": Refusals(
        _received("L", words=(NOW, 1, "key", "value")),
        parts=[*_EVERY_LEVEL, "lease:L"],
        calls=lambda drive, call: [call.only(3), call.more(*["k", "v"] * 100)],
    ),
}
