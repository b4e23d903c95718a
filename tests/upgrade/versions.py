"""The next version of the package, made from this one: every script has another text, and envelopes begin with `q2 `.

It writes `q2 ` and reads both, as a version that changes the envelope will have to; this one knows only `q1 `.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

__all__ = ["make_next"]

ROOT = Path(__file__).parents[2]
#: File → what is written instead of what. Each must be found, so that this says so where the package has changed.
CHANGES = {
    "wire/envelope.py": [
        ('rb"q1 (', 'rb"q[12] ('),
        ('rb"q1 [', 'rb"q[12] ['),
        ('item.startswith(b"q1 ")', 'item.startswith((b"q1 ", b"q2 "))'),
        ('return f"q1 {', 'return f"q2 {'),
        ('cls.parse(f"q1 {', 'cls.parse(f"q2 {'),
    ],
    "consumer/child/settle/journal_events.py": [
        ('item.startswith(b"q1 ")', 'item.startswith((b"q1 ", b"q2 "))')
    ],
    "lua/lib/envelope.lua": [
        ("b == 49 and", "(b == 49 or b == 50) and"),
        ("'^q1 (", "'^q[12] ("),
        ("'q1 ' ..", "'q2 ' .."),
    ],
    "lua/deliver/extend.lua": [("'^q1 (", "'^q[12] (")],
    "lua/lib/effects.lua": [("'^q1 [", "'^q[12] ["), ("'^q1 (", "'^q[12] (")],
    "lua/lib/ends.lua": [("'^q1 (", "'^q[12] (")],
    "lua/lib/requeue.lua": [("'^(q1 ", "'^(q[12] ")],
    "lua/lib/requeue_outcomes.lua": [("'^q1 (", "'^q[12] (")],
    "lua/lib/group_members.lua": [("'^q1 ", "'^q[12] ")],
    "lua/lib/group_slots.lua": [("'^q1 ", "'^q[12] ")],
    "lua/lib/groups.lua": [("'^q1 [", "'^q[12] ["), ("== 'q1 '", "== 'q2 '")],
    "lua/lib/joins.lua": [("'^q1 (", "'^q[12] (")],
    "lua/calls/join.lua": [("'q1 ' ..", "'q2 ' ..")],
    "lua/lib/call_specs.lua": [("'^q1 [", "'^q[12] [")],
    "lua/lib/journal.lua": [("'^q1 (", "'^q[12] (")],
    "lua/lib/lone_items.lua": [("~= 'q1 '", "~= 'q2 '")],
    "lua/lib/order.lua": [("'^q1 (", "'^q[12] (")],
    "lua/repair/repair_groups.lua": [("'^q1 (", "'^q[12] (")],
    "lua/repair/repair_seats.lua": [("'^q1 (", "'^q[12] (")],
    "lua/run/inspect_runs.lua": [
        ("'q1 ' .. string.match", "' ' .. string.match"),
        ("string.sub(item, 1, #begin) == begin", "string.sub(item, 3, 2 + #begin) == begin"),
    ],
    "lua/run/start.lua": [("'^q1 (", "'^q[12] (")],
    "lua/lib/unique_keys.lua": [("'q1 ' ..", "string.sub(item, 1, 3) ..")],
    "lua/send/accept.lua": [("'^q1 %", "'^q[12] %")],
    "lua/send/fire.lua": [("'^q1 (", "'^q[12] (")],
    "lua/send/send.lua": [("'^q1 (", "'^q[12] (")],
    "lua/send/send_chunk.lua": [("'q1 ' ..", "'q2 ' ..")],
    "lua/send/take_over.lua": [("'^q1 (", "'^q[12] (")],
}


def make_next(directory: Path) -> Path:
    """Copy the package into a directory, which is to stand first in PYTHONPATH, and make it the next version."""
    package = directory / "qworker"
    # With what is compiled: a process of the other version starts no slower than one of this.
    shutil.copytree(ROOT / "qworker", package)
    for name, changes in CHANGES.items():
        path = package / name
        text = path.read_text()
        for old, new in changes:
            assert old in text, (name, old)
            text = text.replace(old, new)
        path.write_text(text)
    left = [
        f"{path.relative_to(package)}: {line.strip()}"
        for path in package.glob("lua/**/*.lua")
        for line in path.read_text().splitlines()
        if re.search(r"['^]q1 ", line.partition("-- ")[0])
    ]
    assert left == [], "still of the version before"
    for path in package.glob("lua/[!l]*/*.lua"):
        path.write_text(path.read_text() + "-- the next version\n")
    return directory
