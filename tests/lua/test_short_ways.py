"""The short ways of the scripts do what the long ones do: the same call on the same queue, with and without them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, Final

import msgspec
import pytest
from msgspec import structs

from qworker.engine.receive import settle_receive
from qworker.engine.scripts import load_script
from qworker.engine.send import NewMessage, send
from qworker.engine.settle import Outcomes
from qworker.errors import BrokenQueueError, LeaseUsedError, QworkerError
from tests.lua.drive import NOW, SNAPSHOT, STANDARD_PARTS, Drive, deny, guarded
from tests.lua.group_calls import put

#: Into how many tests the calls on each queue are parted, of which one runs by day.
PARTED: Final = 4
PARTS: Final = files("qworker").joinpath("lua/lib")
#: The included text that makes a script's short way.
SHORT: Final = {
    "send": ["lone_send.lua"],
    "settle": ["lone_settle.lua"],
    "settle_receive": ["lone_receive.lua"],
}
#: Keys of a queue that a short way does not ask for, so that another type there does not refuse it.
UNASKED: Final = {
    "send": {"wake", "delayed", "unique", "journal"},
    "settle": {
        "ready",
        "ready:1",
        "wake",
        "delayed",
        "dead",
        "suspect",
        "unique",
        "cancelled",
        "journal",
    },
    "settle_receive": {
        "ready",
        "ready:1",
        "unacked",
        "wake",
        "delayed",
        "dead",
        "unique",
        "journal",
        "lease:N",  # if nothing is delivered
    },
}


def long_way(name: str) -> bytes:
    """The text of a script without its short way."""
    source = load_script(name).source
    for part in SHORT[name]:
        text = PARTS.joinpath(part).read_bytes()
        assert source.count(text) == 1
        source = source.replace(text, b"")
    return source


def only_short(name: str) -> bytes:
    """A script that ends with its short way, which stands in a block but in `send`."""
    source = load_script(name).source
    text = PARTS.joinpath(SHORT[name][0]).read_bytes()
    end = b"" if name == "send" else b"end"
    return source[: source.index(text)] + text + b"\n%b return 'nothing'" % end


def item(name: str, flags: str = "") -> str:
    """An envelope."""
    return f"q1 {name} {NOW - 5} 0 0 0 0{flags}\nbody={name}"


@dataclass
class World:
    """A queue as it is made before the call: fields of hashes, and members of the others."""

    meta: dict[str, str] = field(default_factory=dict)
    ready: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    #: Ids of messages that have tombstones.
    cancelled: list[str] = field(default_factory=list)
    leases: list[str] = field(default_factory=list)
    tokens: int = 0
    lane: str = ""
    near: str = ""
    stats: dict[str, str] = field(default_factory=dict)
    broken: str = ""
    #: Without attributes, so that the call takes the time of the server.
    bare: bool = False

    def made_by(self, base: str) -> list[Any]:
        """The commands that write it, as `MAKE` takes them."""
        commands: list[Any] = []

        def add(name: str, part: str, *words: Any) -> None:
            commands.extend((2 + len(words), name, base + part, *words))

        if not self.bare:
            add("HSET", "meta", *_pairs({"test": "1", **self.meta}))
        for each in self.ready:
            add("RPUSH", "ready", each)
        if "suspect" in self.parts:
            add("RPUSH", "suspect", item("s"))
        for name in self.cancelled:
            add("ZADD", "cancelled", NOW + 9999, name)
        if "delayed" in self.parts:
            add("ZADD", "delayed", NOW + 700, item("d"))
        if "dead" in self.parts:
            add("XADD", "dead", "1-1", "m", item("x"))
        if "ready:5" in self.parts:
            add("RPUSH", "ready:5", item("p", " p=5"))
        for _ in range(self.tokens):
            add("RPUSH", "wake", "1")
        if self.lane:
            add("HSET", "producers", "lane", self.lane)
        near = {"lane:lane": self.near} if self.near else {}
        counted = {"sent": 7, "stored": 5, "received": 3, "unacked": 2}
        add("HSET", "stats", *_pairs({**counted, **self.stats, **near}))
        for number, shape in enumerate(self.leases):
            fields: dict[str, Any] = {
                "alone": {"0": item(f"l{number}")},
                "batch": {"batch": msgspec.msgpack.encode([item("b1"), item("b2")])},
                "apart": {"1": item("a1"), "2": item("a2")},
                "loose": {"0": item("a0"), "1": item("a1")},
                "other": {"3": item("o")},
                "gone": {},
            }[shape]
            if fields:
                add("HSET", f"lease:L{number}", *_pairs(fields))
                add("ZADD", "unacked", NOW + 20_000, f"L{number}")
        if self.broken:
            add("SET", self.broken, "other")
        return commands


def _pairs(fields: dict[str, Any]) -> list[Any]:
    return [word for pair in fields.items() for word in pair]


#: Writes the keys KEYS by the commands in ARGV, each behind the number of its words, whatever was there before.
MAKE: Final = """
redis.call('DEL', unpack(KEYS))
local i = 1
while ARGV[i] do
  local last = i + ARGV[i]
  redis.call(unpack(ARGV, i + 1, last))
  i = last + 1
end
"""


ITEMS: Final = [
    item("r0"),
    item("f", " p=5 m=3"),
    item("late", f" x={NOW - 1}"),
    item("soon", f" x={NOW + 5000}"),
    '{"plain": "x=1"}',
    "q2 newer 1 0 0 0 0\nx",
    "foreign x=",
    "q1 no end",
    "q1 flag= but no end",
]
META: Final = [
    ("paused", "in"), ("paused", "out"), ("paused", "all"), ("paused", "x"), ("levels", "5"), ("journal", "all"),
    ("journal", "outcomes"), ("journal", "off"), ("visibility_ms", "5000"), ("visibility_ms", "0"),
    ("visibility_ms", "x"), ("visibility_ms", "43200001"), ("visibility_ms", "1.5"), ("maxlen", "1"), ("maxlen", "100"),
    ("maxsize", "1"), ("maxsize", "1000"), ("delay_ms", "50"), ("ttl_ms", "50"), ("shard", "open 2 5"),
    ("shard", "draining 2 5"), ("shards", "2 2 5"),
]  # fmt: skip
BROKEN: Final = [
    "ready", "wake", "stats", "unacked", "dead", "delayed", "meta", "suspect", "cancelled", "producers", "unique",
    "lease:L0", "lease:N", "journal",
]  # fmt: skip
#: Of a queue, all that a call may write.
KEYS: Final = [
    *STANDARD_PARTS,
    "ready:1",
    "producers",
    "lease:L0",
    "lease:L1",
    "lease:L2",
    "lease:N",
]
SHAPES: Final = ["alone", "batch", "apart", "loose", "other", "gone"]
SEVERAL: Final = [item(f"r{number}") for number in range(5)]
#: Ids of more lengths, and more ids, than are looked up at once.
LENGTHS: Final = ["x" * length for length in range(1, 9)]
MANY_IDS: Final = ["r0", *(f"other{number}" for number in range(200))]
#: A journal that has begun, and its counters.
BEGUN: Final = {"journal_epoch": "7", "journal_cap": "1048576"}
COUNTED: Final = {"journal_entries": "4", "journal_events": "50", "journal_written": "900"}
#: A time of the server, beside those of tests, which are shorter.
_TIME: Final = re.compile(r"\b1\d{12}\b")
#: What differs from a queue that holds a message and a lease of one.
CHANGES: Final[list[dict[str, Any]]] = [
    {},
    *({"meta": {name: value}} for name, value in META),
    *({"ready": [each]} for each in ITEMS),
    {"ready": []},
    *({"ready": [], "parts": [part]} for part in ("delayed", "suspect", "dead")),
    {"ready": [item("r0"), item("r1")]},
    {"ready": [item("r0"), item("r1")], "tokens": 1},
    {"ready": SEVERAL},
    {"ready": SEVERAL, "tokens": 1, "leases": ["batch"]},
    *({"ready": [item("r0"), each, item("r2")], "leases": ["batch"]} for each in ITEMS),
    *({"ready": SEVERAL, "leases": ["batch", shape]} for shape in SHAPES),
    *({"ready": SEVERAL, "leases": ["apart"], "broken": part} for part in BROKEN[::3]),
    *(
        {"ready": SEVERAL, "leases": ["batch"], "parts": ["ready:5"], "meta": {"levels": n}}
        for n in "57"
    ),
    *({"parts": [part]} for part in ("suspect", "delayed", "dead", "ready:5")),
    *({"cancelled": names} for names in (["r0"], ["r"], ["r00"], MANY_IDS)),
    *(
        {"ready": SEVERAL * 2, "leases": ["batch"], "cancelled": names}
        for names in (["r3"], ["r9"], ["r", "r40", "4"], LENGTHS, ["r4", *LENGTHS], MANY_IDS)
    ),
    {"ready": [*SEVERAL, *ITEMS], "cancelled": ["other", "lain", "rei"]},
    *({"cancelled": ["other"], "parts": [part]} for part in ("dead", "suspect")),
    {"cancelled": ["other"], "broken": "dead"},
    *({"parts": ["ready:5"], "meta": {"levels": levels}} for levels in ("5", "95", "0")),
    {"parts": ["ready:5"], "meta": {"levels": "5"}, "ready": []},
    {"parts": ["ready:5"], "meta": {"levels": "15"}, "broken": "ready:1"},
    {"meta": {"levels": "59"}, "ready": [item("r0"), item("r1")], "tokens": 1},
    *({"leases": [shape, "alone"]} for shape in SHAPES),
    *({"leases": [shape]} for shape in SHAPES if shape != "loose"),
    {"leases": ["alone", "alone", "gone"]},
    {"leases": []},
    {"tokens": 1},
    {"tokens": 8},
    *({"lane": last} for last in ("4 1", "5 1", "5 1 1 other", "6 1", "x")),
    *({"near": last} for last in ("4 1", "5 1", "5 1 1 other", "6 1", "x")),
    # A send takes the short way once its lane is known.
    *({"near": "4 1", "meta": {name: value}} for name, value in META),
    *({"near": "4 1", "meta": {"maxsize": most}} for most in ("5", "9", "x")),
    {"near": "4 1", "meta": {"groups": "1"}},
    {"near": "-", "lane": "4 1"},
    {"near": "4 1", "stats": {"stored": "1.5"}},
    {"stats": {"stored": "1.5"}},
    *({"near": "4 1", "broken": part} for part in BROKEN[::3]),
    *({"near": "4 1", "meta": {"shards": "2 2 5", "paused": paused}} for paused in ("out", "")),
    *({"broken": part} for part in BROKEN),
    *(
        {
            "ready": SEVERAL,
            "leases": [shape, "alone"],
            "meta": {"journal": "all", **BEGUN, **more},
            "stats": stats,
        }
        for shape, stats, more in (
            ("alone", COUNTED, {}),
            ("batch", COUNTED, {}),
            ("apart", COUNTED, {"journal": "outcomes"}),
            ("batch", COUNTED, {"journal_cap": "1048575"}),
            ("batch", COUNTED, {"journal_shed": "1"}),
            ("batch", COUNTED, {"journal_epoch": "0"}),
            ("batch", COUNTED, {"groups": "1"}),
            ("batch", {}, {}),
            ("batch", {**COUNTED, "journal_events": "x"}, {}),
            ("batch", {**COUNTED, "journal_entries": "1.5"}, {}),
        )
    ),
    *(
        {"leases": ["batch"], "meta": {"journal": "all", **BEGUN}, "stats": COUNTED, "broken": part}
        for part in BROKEN[1::3]
    ),
    {"leases": [], "meta": {"journal": "all", **BEGUN}, "stats": COUNTED},
    *(
        {"near": "4 1", "meta": {"journal": mode, **BEGUN}, "stats": COUNTED}
        for mode in ("all", "outcomes")
    ),
    {"meta": {"journal": "off", "groups": "1"}},
    *({"meta": {"maxsize": most}} for most in ("5", "6", "9", "x", "1.5")),
    {"meta": {"maxlen": "0", "maxsize": "0", "delay_ms": "0", "ttl_ms": "0", "journal": "off"}},
    {"ready": [], "broken": "delayed"},
    {"parts": ["dead"], "leases": ["gone"], "broken": "dead"},
]
#: A second message of a send, and its end.
TWO: Final = ["q1 other ", "\nbody", "0"]
#: How the arguments differ from those of a short way, by position.
ARGUMENTS: Final[dict[str, list[dict[int, Any]]]] = {
    "send": [
        {}, {1: ""}, {2: ""}, {2: "x"}, {2: "1.5"}, {2: "9" * 16}, {3: "0"}, {3: "5"}, {3: "x"}, {4: "5"}, {4: "-1"},
        {5: "5"}, {5: "55"}, {5: "x"}, {6: "2"}, {7: "rubbish"}, {8: " u=k\nbody"}, {9: "x"}, {9: "1"},
        {7: "q1 a\n\nacked 5 - t - -\nq1 "}, {7: "q1 a\nacked 5 - t - - "}, {7: "q1 a\nq1 "}, {7: "x\nq1 "},
        {9: "100"}, {6: "1.5", 9: ["0", "0"]}, {6: "2", 9: TWO}, {6: "3", 9: TWO},
        {6: "2", 9: ["q1 other ", " g=x\nbody", "0"]}, {6: "2", 9: ["q1 other ", "\nlarger body", "0"]},
    ],
    "settle": [{}, {1: "host:1"}],
    "settle_receive": [
        {}, {1: "1"}, {2: "0"}, {2: "3"}, {2: "5"}, {2: "9"}, {2: "2"}, {2: "0.5"}, {2: "-1"}, {2: "1001"}, {3: "9000"},
        {3: "0"}, {3: "1.5"}, {3: "43200001"}, {4: "0"}, {4: "2"}, {4: "3"}, {5: "host:1"},
    ],
}  # fmt: skip
OUTCOMES: Final = [
    ["1", "0", "0", "0", "0"],
    ["*", "0", "0", "0"],
    ["1", "1", "0", "0", "0"],
    ["2", "1", "2", "0", "0", "0"],
    ["2", "1", "1", "0", "0", "0"],
    ["2", "1", "3", "0", "0", "0"],
    ["3", "1", "2", "3", "0", "0", "0"],
    ["2", "0", "1", "0", "0", "0"],
    ["1", "1", "0", "0", "0"],
    ["0", "0", "0", "0"],
    ["2", "0", "0", "0", "0", "0"],
    ["1", "0", "1", "0", "k", "l0", "0", "0"],
    ["1", "0", "0", "1", "d", "0", "", "", "", "", "", "", "0"],
    ["1", "0", "0", "0", "1", "1", "acked - - - - -"],
    ["*", "0", "0", "1", "2", "acked 5 - t - -\nq1 b1 1 0 0 0 0\nq1 b2 1 0 0 0 0"],
    [
        "*",
        "0",
        "0",
        "2",
        "1",
        "acked 5 - t - -\nq1 b1 1 0 0 0 0",
        "1",
        "acked 5 - u - -\nq1 b2 1 0 0 0 0",
    ],
    ["2", "1", "2", "0", "0", "1", "2", "acked 5 - t - -\nq1 b1 1 0 0 0 0\nq1 b2 1 0 0 0 0"],
    ["2", "1", "3", "0", "0", "1", "2", "acked 5 - t - -\nq1 b1 1 0 0 0 0\nq1 b2 1 0 0 0 0"],
    ["1", "0", "0", "0", "1", "0", "acked - - - - -"],
    ["1", "0", "0", "0", "1", "1", "x" * 16385],
    ["1", "0", "0", "0", "10001", "1", "acked - - - - -"],
    ["1", "0", "0", "0", "1", "1"],
    ["1", "0", "0", "0", "x"],
]


def arguments(name: str, changed: dict[int, Any], leases: int, outcome: list[str]) -> list[str]:
    """The words of a call that acks so many leases, the first of them by `outcome`."""
    if name == "send":
        words = [str(NOW), "lane", "5", "", "", "0", "1", "q1 new ", "\nbody", "0"]
    else:
        head = {"settle": [""], "settle_receive": ["0", "1", "", "1", ""]}[name]
        outcomes = [*outcome, *(OUTCOMES[0] * (leases - 1))] if leases else []
        words = [str(NOW), *head, str(leases), *outcomes]
    for position, value in changed.items():
        words[position : position + 1] = value if isinstance(value, list) else [value]
    return words


@dataclass
class Call:
    """The leases that a call names, and its arguments."""

    leases: list[str]
    words: list[str]


def calls(name: str) -> Iterator[tuple[World, list[Call]]]:
    """Queues, and the calls on each that has just been made: all changes by each argument and outcome."""
    of_others = {"leases"} if name == "send" else {"near", "lane"}
    for change in CHANGES:
        if of_others & set(change):
            continue
        world = World(**{"ready": [item("r0")], "leases": ["alone"], **change})
        numbers = [0] if name == "send" else sorted({0, len(world.leases)})
        made, bare = [], []
        for leases in numbers:
            held = [f"L{n}" for n in range(leases)]
            held += ["N"] if name == "settle_receive" else []
            for changed in ARGUMENTS[name]:
                for outcome in OUTCOMES if leases and not changed else OUTCOMES[:1]:
                    made.append(Call(held, arguments(name, changed, leases, outcome)))
            if "meta" not in change:
                bare.append(Call(held, ["", *arguments(name, {}, leases, OUTCOMES[0])[1:]]))
        yield world, made
        if bare:
            yield replace(world, bare=True), bare


@pytest.mark.parametrize("script", ["settle", "settle_receive"])
def test_a_lease_key_of_another_name_is_refused(drive: Drive, script: str) -> None:
    """It is not the lease whose deadline stands under the id that its key ends with."""
    other = f"{drive.base}other:lease:L0"
    drive.redis.hset(other, "0", item("l0"))
    drive.redis.zadd(drive.keys.unacked, {"L0": NOW + 20_000})
    leases = ["N"] if script == "settle_receive" else []
    keys = [*drive.standard_keys("L0", *leases)]
    keys[20] = other
    before = drive.redis.dump(drive.keys.unacked)
    reply = drive.call(script, tuple(keys), *arguments(script, {}, 1, OUTCOMES[0]))
    assert reply == ["ARG", "acks"]
    assert drive.redis.hgetall(other) == {b"0": item("l0").encode()}
    assert drive.redis.dump(drive.keys.unacked) == before


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("script", ["settle", "settle_receive"])
@pytest.mark.parametrize(
    ("count", "outcome"), [(1, ["1", "0"]), (1, ["*"]), (3, ["*"]), (3, ["3", "1", "2", "3"])]
)
def test_a_lease_that_is_named_twice_is_acked_once(
    drive: Drive, grouped: bool, script: str, count: int, outcome: list[str]
) -> None:
    """Else more would be counted as acked than there was, and less as stored than there is."""
    put(drive, *[f"g{each}:m{each}" if grouped else f"m{each}" for each in range(5)])
    drive.receive("L0", count)
    leases = ["L0", "L0", "N"] if script == "settle_receive" else ["L0", "L0"]
    head = ["0", "1", "", "1", ""] if script == "settle_receive" else [""]
    words = [str(NOW), *head, "2", *[*outcome, "0", "0", "0"] * 2]
    drive.call(script, drive.standard_keys(*leases), *words)
    state = drive.state()
    held = sum(len(lease) for part, lease in state.items() if part.startswith("lease:"))
    counted = drive.stats("acked", "stored", "unacked")
    assert counted == {"acked": count, "stored": 5 - count, "unacked": held}


def test_what_another_program_wrote_into_a_lease_moves_along(drive: Drive) -> None:
    """The lease of an acked message becomes that of the next one: a field that is not ours keeps a deadline."""
    drive.send("next")
    drive.redis.hset(drive.keys.lease("L0"), mapping={"0": item("l0"), "1": item("theirs")})
    drive.redis.zadd(drive.keys.unacked, {"L0": NOW + 20_000})

    batch = drive.receive("N", 1, Outcomes("L0", acks=["0"]))

    assert (batch.settled, batch.indices) == ((1,), ["0"])
    state = drive.state("lease:L0", "lease:N", "unacked")
    assert state["unacked"] == {"N": batch.deadline_ms}
    assert state["lease:N"] == {"0": batch.items[0].decode(), "1": item("theirs")}


@pytest.mark.parametrize("taken", ["lease", "deadline", "gone"])
def test_a_new_lease_that_exists_is_refused_with_nothing_written(drive: Drive, taken: str) -> None:
    """By its key or by its deadline alone; nor does a message that is gone from its lease give room to the next."""
    drive.send("next")
    drive.redis.hset(drive.keys.lease("L0"), "0" if taken != "gone" else "1", item("l0"))
    drive.redis.zadd(drive.keys.unacked, {"L0": NOW + 20_000})
    if taken == "lease":
        drive.redis.hset(drive.keys.lease("N"), "0", item("other"))
    if taken == "deadline":
        drive.redis.zadd(drive.keys.unacked, {"N": NOW + 30_000})
    before = drive.state("ready", "lease:L0", "lease:N", "unacked")

    sha = drive.redis.script_load(load_script("settle_receive").source)
    short = drive.redis.script_load(only_short("settle_receive"))
    keys = drive.standard_keys("L0", "N")
    words = arguments("settle_receive", {}, 1, OUTCOMES[0])
    assert drive.redis.evalsha(short, len(keys), *keys, *words) == b"nothing"
    assert drive.state("ready", "lease:L0", "lease:N", "unacked") == before
    if taken == "lease":
        assert drive.redis.evalsha(sha, len(keys), *keys, *words)[0] == b"LEASEUSED"


@pytest.mark.parametrize("pair", [""], indirect=True)
@pytest.mark.parametrize("count", [2, 41, 43, 44, 50, 1000])
@pytest.mark.parametrize("lower", [item("r3"), item("soon", f" x={NOW + 5000}")])
def test_a_batch_of_several_levels_takes_the_short_way(
    pair: tuple[Drive, Drive], count: int, lower: str
) -> None:
    """Higher levels first, in order; one message that is not plain sends the call the long way, to the same end."""
    results = []
    for drive, text in zip(
        pair, (only_short("settle_receive"), long_way("settle_receive")), strict=True
    ):
        drive.redis.hset(drive.keys.meta, mapping={"test": "1", "levels": "592"})
        for level, number in ((9, 40), (5, 3), (0, 3)):
            drive.redis.rpush(
                drive.keys.ready[level], *(item(f"{level}-{n}") for n in range(number))
            )
        drive.redis.rpush(drive.keys.ready[0], lower, item("r4"))
        sha = drive.redis.script_load(text)
        keys = drive.standard_keys("N")
        words = arguments("settle_receive", {2: str(count)}, 0, [])
        reply = drive.redis.evalsha(sha, len(keys), *keys, *words)
        if reply == b"nothing":
            assert " x=" in lower
            assert count > 46
            reply = drive.redis.evalsha(
                drive.redis.script_load(load_script("settle_receive").source),
                len(keys),
                *keys,
                *words,
            )
        results.append(
            _comparable(
                reply[:9], drive.state("ready", "ready:5", "ready:9", "lease:N"), drive.base
            )
        )
        assert reply[8][0].split()[1] == b"9-0"
    assert results[0] == results[1]


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("flags", ["", " m=3", f" m=3 x={NOW - 1}", " g=a"])
def test_flags_are_seen_before_a_large_body_too(drive: Drive, flags: str, others: int) -> None:
    """A body with signs of flags is not searched: alone, and behind another message."""
    items = [item(f"r{number}") for number in range(others)]
    items.append(f"q1 big {NOW - 5} 0 0 0 0{flags}\n" + "b x=1" * 1000)
    drive.redis.rpush(drive.keys.ready[0], *items)
    sha = drive.redis.script_load(only_short("settle_receive"))
    keys = drive.standard_keys("N")
    words = arguments("settle_receive", {2: "5"}, 0, [])
    reply = drive.redis.evalsha(sha, len(keys), *keys, *words)
    if flags in ("", " m=3"):
        assert reply[8] == [each.encode() for each in items]
    else:
        assert reply == b"nothing"
        assert drive.state("lease:N", "unacked") == {}


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("others", [1, 200])
def test_a_tombstone_of_another_message_leaves_a_receive_the_short_way(
    drive: Drive, grouped: bool, count: int, others: int
) -> None:
    """A cancelled message that is never read does not make each receive of its queue dearer."""
    put(drive, *[f"g{each}:m{each}" if grouped else f"m{each}" for each in range(20)])
    drive.redis.zadd(drive.keys.cancelled, {f"other{n}": NOW + 9999 for n in range(others)})
    sha = drive.redis.script_load(only_short("settle_receive"))

    def receive(lease: str) -> Any:
        keys = drive.standard_keys(lease)
        words = arguments("settle_receive", {2: str(count)}, 0, [])
        return drive.redis.evalsha(sha, len(keys), *keys, *words)

    assert len(receive("N")[8]) == count
    put(drive, "h:last" if grouped else "last")
    next_one = "m1" if count == 1 else "last"
    drive.redis.zadd(drive.keys.cancelled, {next_one: NOW + 9999})
    assert receive("O") == b"nothing"
    received = {each.split()[1] for each in drive.receive("O", 20).items}
    assert received == (
        {f"m{each}".encode() for each in range(2, 20)} | {b"last"} if count == 1 else set()
    )
    assert drive.stats("cancelled", "stored") == {"cancelled": 1, "stored": 20}


@pytest.mark.parametrize("cancelled", [[], ["other"]])
def test_nothing_is_delivered_where_dead_letters_cannot_be_written(
    drive: Drive, cancelled: list[str]
) -> None:
    """Its messages would be received again and again: none could ever be buried."""
    drive.send("one")
    drive.redis.set(drive.keys.dead, "other")
    for name in cancelled:
        drive.redis.zadd(drive.keys.cancelled, {name: NOW + 9999})
    with pytest.raises(BrokenQueueError, match="dead"):
        drive.receive("N", 1)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("field", ["5", "batch"])
def test_a_new_lease_of_any_shape_is_refused_if_it_exists(
    drive: Drive, field: str, count: int
) -> None:
    """Even without a deadline: its messages would be acked together with the new ones."""
    drive.send("one", "two")
    drive.redis.hset(drive.keys.lease("N"), field, msgspec.msgpack.encode([item("other")]))
    before = drive.state("ready", "lease:N", "unacked")

    with pytest.raises(LeaseUsedError, match="'N'"):
        drive.receive("N", count)

    assert drive.state("ready", "lease:N", "unacked") == before


@pytest.mark.parametrize("priority", [0, 5])
@pytest.mark.parametrize("count", [1, 5])
def test_a_message_of_a_group_takes_its_turn_in_a_queue_that_had_none(
    drive: Drive, count: int, priority: int
) -> None:
    """A call that does not know groups may have put it to ready: an ordered group still runs one message at a time."""
    drive.redis.hset(drive.keys.meta, "levels", "5")
    drive.redis.rpush(drive.keys.ready[priority], *(item(name, " g==a") for name in ("g1", "g2")))

    batches = [drive.receive(lease, count) for lease in ("L", "M", "N")]

    assert [each.split()[1] for batch in batches for each in batch.items] == [b"g1"]


def test_each_message_gets_its_own_field_for_a_caller_that_settles_them_one_by_one(
    drive: Drive,
) -> None:
    """All of them, numbered from 1, so that a timeout counts for none of them alone."""
    drive.send("a", "b", "c")
    command = settle_receive(drive.keys, "N", 10, each=True, now_ms=NOW)

    batch = drive.run(command)

    stored = drive.redis.hgetall(drive.keys.lease("N"))
    assert stored == {b"1": batch.items[0], b"2": batch.items[1], b"3": batch.items[2]}
    assert drive.state("unacked", "ready") == {"unacked": {"N": batch.deadline_ms}}


def test_a_repeated_receive_is_refused_by_an_empty_queue_too(drive: Drive) -> None:
    """A caller whose reply was lost learns that its lease exists, although no message is left."""
    drive.send("only")
    drive.receive("L", 1)

    with pytest.raises(LeaseUsedError, match="'L'"):
        drive.receive("L", 1)


def test_a_repeated_receive_that_finds_nothing_acks_nothing(drive: Drive) -> None:
    """A refusal comes before the acks, also where the new lease would have been the renamed old one."""
    drive.send("one", "two")
    drive.receive("K", 1)
    drive.receive("L", 1)
    before = drive.state("lease:K", "lease:L", "unacked")

    with pytest.raises(LeaseUsedError, match="'L'"):
        drive.receive("L", 1, Outcomes("K", acks=["0"]))

    assert drive.state("lease:K", "lease:L", "unacked") == before


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("leases", [0, 1, 2])
def test_the_short_reply_means_the_same(drive: Drive, leases: int, count: int) -> None:
    """A caller that asks for it gets what the other reply says, in fewer words."""
    for name in ("one", "two"):
        drive.send(name)
    batches = []
    for asked, new in (("", "N"), ("0", "M")):
        held = [f"L{new}{number}" for number in range(leases)]
        for each in held:
            drive.redis.hset(drive.keys.lease(each), "0", item("l0"))
            drive.redis.zadd(drive.keys.unacked, {each: NOW + 20_000})
        command = settle_receive(
            drive.keys,
            new,
            count,
            outcomes=[Outcomes(each, acks=["0"]) for each in held],
            now_ms=NOW,
        )
        words = [*command.args]
        assert words[1] == ""
        words[1] = asked
        raw = drive.redis.evalsha(
            drive.redis.script_load(command.script.source), len(command.keys), *command.keys, *words
        )
        assert (raw[0] == b"SHORT") == (asked == "")
        batches.append(
            structs.replace(command.decode(raw), lease_id="", items=[], ready_left=0, hint_ms=0)
        )
    assert batches[0] == batches[1]
    assert batches[0].settled == (1,) * leases


def test_the_short_reply_of_a_send_means_the_same(drive: Drive) -> None:
    """A caller that asks for it gets the time alone, if the rest is as usual."""
    command = send(drive.keys, [NewMessage("a", b"\nb")], lane="l", sequence=1, now_ms=NOW)
    sha = drive.redis.script_load(command.script.source)
    replies = {}
    for sequence, asked in enumerate(("", "", "0"), 1):
        words = [*command.args]
        assert words[9] == ""
        words[2], words[9] = sequence, asked
        replies[sequence] = drive.redis.evalsha(sha, len(command.keys), *command.keys, *words)
    assert replies == {
        1: [b"OK", 1, b"1000000", 0],  # the first of a lane goes the long way
        2: b"1000000",
        3: [b"OK", 1, b"1000000", 0],
    }
    assert len({command.decode(reply) for reply in replies.values()}) == 1


def test_rules_of_an_earlier_version_lose_nothing() -> None:
    """A user without the rights that only the short ways need sends, receives and acks anyway."""
    with guarded() as drive:
        drive.redis.hset(drive.keys.meta, "test", "1")
        deny(drive, "hlen", "renamenx", "rename", "hsetnx", "lpop")
        for number in range(1, 4):
            drive.send(f"m{number}", lane="lane", sequence=number)
        assert drive.state("producers")["producers"] == {"lane": f"3 {NOW}"}
        taken = drive.receive("L1", 1)
        for lease in ("L2", "L3", "L4"):
            before = f"L{int(lease[1:]) - 1}"
            done = drive.receive(lease, 1, Outcomes(before, acks=["0"]))
            assert done.settled == (1,)
            taken.items.extend(done.items)
        assert [each.split()[1] for each in taken.items] == [b"m1", b"m2", b"m3"]
        assert drive.state("ready", "unacked", "lease:L3") == {}
        assert drive.stats("sent", "stored", "received", "acked", "unacked") == {
            "sent": 3, "stored": 0, "received": 3, "acked": 3, "unacked": 0,
        }  # fmt: skip


def test_without_the_right_to_write_leases_messages_stay_in_ready() -> None:
    """None of those that would get a field each is in the lease as well."""
    with guarded() as drive:
        drive.send("a", "b", "c")
        deny(drive, "hset")
        with pytest.raises(QworkerError):
            drive.run(settle_receive(drive.keys, "L", 10, each=True))
        state = drive.state("ready", "unacked", "lease:L")
        assert [name.split()[1] for name in state.pop("ready")] == ["a", "b", "c"]
        assert not state


def test_whole_leases_are_counted_by_their_messages(drive: Drive) -> None:
    """Batches of more than fifteen, whose number takes two bytes more, as well; the short reply names each lease."""
    drive.send(*(f"m{number}" for number in range(20)))
    drive.receive("L0", 18)
    drive.receive("L1", 2)

    outcomes = [Outcomes("L0", ack_all=True), Outcomes("L1", acks=["1", "2"])]
    batch = drive.receive("N", 1, *outcomes)

    assert batch.settled == (18, 2)
    assert drive.stats("acked", "stored", "unacked") == {"acked": 20, "stored": 0, "unacked": 0}


def test_a_send_of_many_rings_eight_times_at_most(drive: Drive) -> None:
    """The second send of a lane, which takes the short way, as well as the first."""
    for sequence in (1, 2):
        drive.redis.delete(drive.keys.wake)
        ids = [f"m{sequence}-{number}" for number in range(12)]
        drive.send(*ids, lane="lane", sequence=sequence)
        assert drive.redis.llen(drive.keys.wake) == 8
    drive.send("x", "y", lane="lane", sequence=3)
    assert drive.redis.llen(drive.keys.wake) == 8


@pytest.fixture
def pair(
    store_url: str, namespace: str, request: pytest.FixtureRequest
) -> Iterator[tuple[Drive, Drive]]:
    """Two queues, or shards; what is done to one by the short way is done to the other by the long one."""
    drives = (
        Drive(store_url, namespace, f"short{request.param}"),
        Drive(store_url, namespace, f"along{request.param}"),
    )
    yield drives
    for each in drives:
        each.close()


def sha_of(text: str) -> str:
    """The name of a script that a server has loaded."""
    return hashlib.sha1(text.encode()).hexdigest()


def _run(drive: Drive, sha: str, name: str, world: World, made: list[Call]) -> Iterator[Any]:
    """Make the queue anew for each call; yields its reply, what the queue is then, and whether the call changed it."""
    read = [drive.base + part for part in KEYS]
    make, look = sha_of(MAKE), sha_of(SNAPSHOT)
    commands = world.made_by(drive.base)
    with drive.redis.pipeline(transaction=False) as pipe:
        pipe.evalsha(make, len(read), *read, *commands)
        pipe.evalsha_ro(look, len(read), *read)
        for call in made:
            keys = drive.sending_keys() if name == "send" else drive.standard_keys(*call.leases)
            pipe.evalsha(make, len(read), *read, *commands)
            pipe.evalsha(sha, len(keys), *keys, *call.words)
            pipe.evalsha_ro(look, len(read), *read)
        _, before, *found = pipe.execute()
    for reply, after in zip(found[1::3], found[2::3], strict=True):
        changed = (reply[0] == b"OK" and world.broken != "stats") or before != after
        yield reply, after, changed


def _comparable(reply: Any, state: dict[str, Any], base: str) -> list[str]:
    """Without what may differ: tokens of the doorbell, the server's times, and the journal's epoch."""
    meta = state.get("meta")
    if isinstance(meta, dict):
        meta.pop("journal_epoch", None)
    stats = state.get("stats")
    if isinstance(stats, dict):
        stats.pop("reaped_ms", None)
        for name in [name for name, value in stats.items() if value == "0"]:
            del stats[name]
    state["wake"] = bool(state.get("wake"))
    text = json.dumps(state, default=repr, sort_keys=True)
    return [_TIME.sub("now", each.replace(base, "")) for each in (repr(reply), text)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pair", "part"),
    [
        *((name, "", 0) for name in sorted(SHORT)),
        ("send", "/1", 2),
        *(
            pytest.param(
                *row, marks=pytest.mark.nightly("test_the_short_way_does_what_the_long_one_does")
            )
            for row in (
                *((name, "", part) for name in sorted(SHORT) for part in range(1, PARTED)),
                *(("send", "/1", part) for part in (0, 1, 3)),
            )
        ),
    ],
    indirect=["pair"],
)
def test_the_short_way_does_what_the_long_one_does(
    pair: tuple[Drive, Drive], name: str, part: int
) -> None:
    """The same reply, and the same queue; what a short way does not do, the long one does or refuses.

    Each part makes a quarter of the calls on each queue, of the next one others.
    """
    short, along = pair
    short_sha = short.redis.script_load(load_script(name).source)
    long_sha = along.redis.script_load(long_way(name))
    for drive in pair:
        drive.redis.script_load(MAKE)
        drive.redis.script_load(SNAPSHOT)
    for number, (world, each_call) in enumerate(calls(name)):
        made = each_call[(number + part) % PARTED :: PARTED]
        done = _run(short, short_sha, name, world, made)
        wanted = _run(along, long_sha, name, world, made)
        for call, (reply, after, changed), (expected, other, _) in zip(
            made, done, wanted, strict=True
        ):
            unasked = UNASKED[name] | (set() if changed else {"stats"})
            if expected[0] == b"BROKEN" and reply[0] == b"OK" and world.broken in unasked:
                assert world.broken != "lease:N" or not reply[8]
                continue
            if reply[0] not in (b"OK", b"DUPLICATE"):
                assert not changed, (world, call)
            if (reply, after) != (expected, other):
                got = _comparable(reply, _table(short, after), short.base)
                assert got == _comparable(expected, _table(along, other), along.base), (world, call)


def _table(drive: Drive, snapshot: Any) -> dict[str, Any]:
    return drive.table([drive.base + part for part in KEYS], snapshot)
