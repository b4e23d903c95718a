"""Very many dead letters: filtered, looked at, redriven at a rate, killed on the way, continued.

QWORKER_DEAD_LETTERS says how many; 100000 is the long form.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from qworker.client.queue import Queue
from qworker.engine.receive import settle_receive
from qworker.engine.settle import Outcomes, settle
from qworker.wire.codec import encode_call
from qworker.wire.envelope import Envelope
from tests.cli.conftest import Shop, clean_environment
from tests.consumer.forkserver import Order, WarmProcess, start_module
from tests.timing import DEADLINE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NUMBER = int(os.environ.get("QWORKER_DEAD_LETTERS", "2000"))
#: Of ten dead letters each: six match, and four differ from them in one thing.
KINDS = [
    *[("send_email", "ConnectionError", "Traceback:\nConnectionError: Connection refused")] * 6,
    ("render_pdf", "ConnectionError", "Traceback:\nConnectionError: Connection refused"),
    ("send_email", "ValueError", "Traceback:\nValueError: refused"),
    ("send_email", "ConnectionError", "Traceback:\nConnectionError: timed out"),
    ("sync_crm", "KeyError", "Traceback:\nKeyError: 'id'"),
]
FILTERS = (
    *("--task", "send_email", "--error-class", "ConnectionError", "--error", "refused"),
    *("--reason", "rejected", "--newer-than", "1h"),
)
MEANT = NUMBER * 6 // 10


def fill(queue: Queue) -> tuple[list[str], list[str]]:
    """Leave `NUMBER` dead letters; the ids of those that are meant and of the others, in order."""
    meant, others = [], []
    for _ in range(NUMBER // 1000):
        bodies = [encode_call(KINDS[at % 10][0], [at], {}) for at in range(1000)]
        queue.send_many(bodies)
        batch = queue.client.execute(
            settle_receive(queue.keys, queue.client.ids.lease_id(), 1000, visibility_ms=60_000)
        )
        outcomes = Outcomes(batch.lease_id)
        for at, (index, item) in enumerate(zip(batch.indices, batch.items, strict=True)):
            _, error_class, error = KINDS[at % 10]
            outcomes.bury(index, "rejected", (error_class, error))
            envelope = Envelope.parse(item)
            assert envelope is not None
            (meant if at % 10 < 6 else others).append(envelope.id)
        assert all(queue.client.execute(settle(queue.keys, [outcomes])).counted)
    return meant, others


def ready(shop: Shop) -> list[str]:
    """The ids of all that is ready, in order."""
    return [
        item.split(b" ", 2)[1].decode() for item in shop.ask("LRANGE", shop.keys().ready[0], 0, -1)
    ]


def dead(shop: Shop) -> list[str]:
    """The ids of all that is dead, in order."""
    found: list[str] = []
    after = "-"
    while True:
        entries = shop.ask("XRANGE", shop.keys().dead, after, "+", "COUNT", 5000)
        for _, fields in entries:
            envelope = dict(zip(fields[::2], fields[1::2], strict=True))[b"envelope"]
            found.append(envelope.split(b" ", 2)[1].decode())
        if len(entries) < 5000:
            return found
        after = f"({entries[-1][0].decode()}"


def start(shop: Shop, folder: Path, *words: str) -> subprocess.Popen[bytes] | WarmProcess:
    """Start a redrive of what is meant, in its own process, which writes to the file `out`."""
    arguments = ["dead", "redrive", "emails", *FILTERS, "--yes", "--json", *words]
    environ = clean_environment(QWORKER_URL=shop.url, QWORKER_NAMESPACE=shop.namespace)
    with (folder / "out").open("wb") as out:
        return start_module(Order("qworker", arguments, str(folder), environ), out)


def test_many_dead_letters_are_redriven_once_each_despite_kills(shop, process, tmp_path):
    """After every kill each dead letter is in one place; at the end the matching ones are ready, in order."""
    began = time.monotonic()
    meant, others = fill(shop.queue())
    filled_s = time.monotonic() - began

    began = time.monotonic()
    dry = process("dead", "redrive", "emails", *FILTERS, "--dry-run", "--json").json
    dry_s = time.monotonic() - began
    assert dry == {
        "queue": "emails", "matched": MEANT, "redriven": 0, "foreign": 0, "gone": 0, "kept_out": 0,
        "dry_run": True, "by_reason": {"rejected": MEANT},
        "by_error_class": {"ConnectionError": MEANT}, "by_task": {"send_email": MEANT},
    }  # fmt: skip
    assert dead(shop) == sorted([*meant, *others])

    # It takes some 5 s at this rate, and each is killed after a quarter of that.
    rate, kills = MEANT // 5, 0
    for share in (0.25, 0.5, 0.75):
        running = start(shop, tmp_path, "--rate", f"{rate}/s")
        while shop.ask("LLEN", shop.keys().ready[0]) < MEANT * share:
            assert running.poll() is None
            time.sleep(0.02)
        running.kill()
        assert running.wait() == -9
        kills += 1
        back, left = ready(shop), dead(shop)
        assert back == meant[: len(back)]
        assert left == sorted([*meant[len(back) :], *others])

    before = len(ready(shop))
    began = time.monotonic()
    last = start(shop, tmp_path, "--rate", f"{rate}/s")
    assert last.wait(DEADLINE_S) == 0
    last_s = time.monotonic() - began
    document = json.loads((tmp_path / "out").read_text())

    assert document["redriven"] == MEANT - before
    assert ready(shop) == meant
    assert dead(shop) == others
    assert last_s >= (MEANT - before) / rate
    inspection = shop.queue().inspect()
    assert inspection.stats["redriven"] == inspection.stored == MEANT
    print(  # shown by -rP
        f"{NUMBER:,} dead letters ({filled_s:.1f} s to make), dry run of {MEANT:,} in {dry_s:.1f} s, "
        f"redriven at {rate:,}/s with {kills} kills, the last {MEANT - before:,} in {last_s:.1f} s"
    )


def test_many_dead_letters_are_redriven_unthrottled_and_dropped(shop, process):
    """Without a rate nothing waits; what is left is dropped."""
    meant, others = fill(shop.queue())
    began = time.monotonic()
    ran = process("dead", "redrive", "emails", *FILTERS, "--yes")
    redriven_s = time.monotonic() - began
    assert ran.out == f"redriven {MEANT:,} dead letters of emails\n"
    assert ready(shop) == meant
    assert dead(shop) == others
    assert process("dead", "drop", "emails", "--all", "--yes").code == 0
    assert dead(shop) == []
    print(f"{MEANT:,} of {NUMBER:,} dead letters redriven in {redriven_s:.1f} s")  # shown by -rP
