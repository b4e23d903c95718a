"""What children say to their supervisor, and what stands in a journal: garbage is reported, and ends nothing."""

# ruff: noqa: PT017  an answer or a refusal: both are checked
from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from qworker.consumer.manifest import Manifest, ManifestTask
from qworker.consumer.supervisor.processes.process import ChildProcess
from qworker.errors import PipelineError
from tests.fuzz.envelopes import items
from tests.fuzz.exploring import explore

_GOOD = msgspec.json.encode(
    Manifest(
        "shop",
        ["emails"],
        ["emails", "emails/1"],
        [ManifestTask("t", "emails", False, None, 0, 0.0)],
    )
)
_MANIFESTS = st.one_of(
    st.binary(max_size=60),
    st.tuples(st.integers(0, len(_GOOD)), st.binary(max_size=3)).map(
        lambda cut: _GOOD[: cut[0]] + cut[1] + _GOOD[cut[0] :]
    ),
    st.sampled_from(
        [
            b"{}",
            b"[]",
            b"null",
            b'{"queues": 5}',
            b'{"queues": [1]}',
            b'{"tasks": [{}]}',
            b"[" * 5000,
            b"\n\n",
        ]
    ),
    st.sampled_from(
        [
            b'{"namespace": "A b", "queues": ["x y"]}',
            b'{"error": 5}',
            b"\xff\xfe",
            b'{"queues": ["\\ud800"]}',
        ]
    ),
)


def child_of(theirs: socket.socket) -> Any:
    """A child as its supervisor has it, without the process: only the socket is read."""
    child = SimpleNamespace(_control=theirs, _received=b"", manifest=None, keys=(), max_waits_s=())
    child.read_manifest = lambda: ChildProcess.read_manifest(child)
    return child


@pytest.mark.slow
def test_a_manifest_is_read_or_is_an_error() -> None:
    """In whatever pieces it comes: nothing that a child sends ends its supervisor."""

    def read(pieces: list[bytes]) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setblocking(False)
            child = child_of(theirs)
            manifest = None
            for piece in [*pieces, b"\n"]:
                ours.sendall(piece)
                manifest = manifest or child.read_manifest()
            assert manifest is not None
            assert isinstance(manifest, Manifest)
            assert manifest == child.manifest

    explore(read, st.lists(_MANIFESTS, min_size=1, max_size=3), examples=300)


_NUMBERS = st.one_of(
    st.integers(0, 10).map(str),
    st.sampled_from(["-", "", "x", "-5", "9" * 16, "9" * 18, "9" * 19, "9" * 40]),
)
_FIRSTS = st.one_of(
    st.tuples(
        st.sampled_from(["acked", "sent", "", "what ever", "delivered", "dead"]),
        _NUMBERS,
        st.sampled_from(["-", "AACAPwAAgD8=", "AAAA", "====", "ä", "AADAfwAAwH8=", "AACAfwAAgP8="]),
        st.sampled_from(["t", "-", '"', "ä"]),
        st.just("-"),
        st.just("-"),
    ).map(lambda parts: " ".join(parts).encode()),
    st.binary(max_size=40),
)
_HEADERS = st.one_of(items.map(lambda item: item.partition(b"\n")[0]), st.binary(max_size=40))
_GROUPS = st.tuples(_FIRSTS, st.lists(_HEADERS, max_size=3)).map(
    lambda group: b"\n".join([group[0], *group[1]])
)
_LINES = st.lists(_GROUPS, min_size=1, max_size=3).map(b"\n\n".join)
_WORDS = st.one_of(
    st.integers(0, 5).map(lambda n: b"%d" % n),
    st.binary(max_size=5),
    st.sampled_from([b"9" * 19, b"9" * 400]),
)
_ENTRIES = st.lists(
    st.one_of(
        st.tuples(_WORDS, _WORDS, _WORDS, _WORDS, _LINES).map(
            lambda each: [
                b"n",
                each[0],
                b"k",
                each[1],
                b"b",
                b"0",
                b"t",
                each[2],
                b"w",
                each[3],
                b"e1",
                each[4],
            ]
        ),
        st.tuples(_LINES).map(
            lambda each: [b"n", b"0", b"k", b"1", b"b", b"0", b"t", b"5", b"w", b"", b"e1", each[0]]
        ),
        st.lists(_WORDS, min_size=2, max_size=4).map(lambda words: words[: len(words) // 2 * 2]),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.needs("pyarrow")
@pytest.mark.slow
@pytest.mark.parametrize(
    "examples",
    [
        100,
        pytest.param(
            300, marks=pytest.mark.nightly("test_a_journal_is_decoded_or_its_entry_is_named")
        ),
    ],
)
def test_a_journal_is_decoded_or_its_entry_is_named(examples: int) -> None:
    """Rows for every entry, whatever it says; one in another format is reported with its id and what to do."""
    from qworker.pipeline.source.decoding import EntryPage, decode
    from qworker.pipeline.source.schemas import arrow_of

    def read(entries: list[list[bytes]]) -> None:
        reply = [(b"5-%d" % number, fields) for number, fields in enumerate(entries)]
        try:
            page = EntryPage.of("emails", reply)
        except PipelineError as error:
            assert "entry" in str(error)
            return
        batch = decode("emails", 5, page)
        assert batch.schema.equals(arrow_of("journal"))
        batch.validate(full=True)
        assert set(batch.column("entry").to_pylist()) == set(range(len(entries)))

    explore(read, _ENTRIES, examples=examples)
