"""A made-up evening of a shop, for pictures of the full screen: the same each time, and without a server."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from qworker.cli.top.full.app import Top
from qworker.cli.top.full.dead import DeadGroups, DeadRow
from qworker.cli.top.full.glyphs import UNICODE, Glyphs
from qworker.client.dead.groups import group_by_error
from qworker.client.execute.sync import Client
from qworker.client.inspect.peek import Inspection
from qworker.client.manage.limit import Limit
from qworker.client.manage.limit_load import LimitLoad
from qworker.client.message import DeadLetter
from qworker.client.namespace.workers import ReaperInfo, Worker
from qworker.errors import BrokenQueueError
from qworker.health.finding import Finding, Status
from qworker.monitor.history import Series
from qworker.monitor.namespace import Namespace
from qworker.monitor.sample import Sample
from qworker.store.connections import ConnectionFactory
from qworker.store.url import ServerURL
from qworker.wire.keys import QueueKeys
from qworker.wire.presence import ChildDocument, RunningDocument, WorkerDocument

__all__ = ["DARK", "LIGHT", "Scene", "picture", "sample"]

#: 2031-05-04 21:40:12 UTC.
NOW_MS: Final = 1_935_697_212_000
_HOUR_POINTS: Final = 120
#: Name → ready, oldest in s, unacked, delayed, dead, sent/s, done/s, failed/s, paused.
_QUEUES: Final[dict[str, tuple[int, float, int, int, int, float, float, float, str]]] = {
    "emails": (1_284, 212, 64, 12, 712, 38.2, 31.4, 0.42, ""),
    "orders": (14, 0.8, 22, 3, 4, 21.7, 21.6, 0.0, ""),
    "payments": (3, 0.3, 8, 41, 0, 9.31, 9.3, 0.0, ""),
    "invoices": (0, 0, 4, 0, 0, 2.1, 2.1, 0.0, ""),
    "thumbnails": (9_412, 1_844, 16, 0, 18, 4.2, 1.93, 0.05, ""),
    "search-index": (52, 2.1, 12, 0, 0, 11.2, 11.0, 0.0, ""),
    "exports": (188, 5_403, 0, 0, 1, 0.02, 0.0, 0.0, "out"),
    "webhooks": (31, 4.5, 20, 906, 127, 14.6, 13.9, 1.88, ""),
    "reports": (2, 12, 2, 24, 0, 0.31, 0.3, 0.0, ""),
    "audit-log": (0, 0, 1, 0, 0, 61.3, 61.3, 0.0, ""),
    "newsletter": (0, 0, 0, 48_211, 0, 0.0, 0.0, 0.0, ""),
    "stock-sync": (7, 0.9, 3, 0, 0, 3.2, 3.2, 0.0, ""),
}
_TASKS: Final = ("send_email", "charge_card", "render_thumbnail", "notify_partner", "sync_stock")
_ERRORS: Final = (
    ("emails", "send_email", "max_receives", "SMTPServerDisconnected: Connection to 'mx{n}' closed", 655),
    ("webhooks", "notify_partner", "max_receives", "HTTPStatusError: 502 from https://partner-{n}.example", 118),
    ("emails", "send_email", "max_receives", "KeyError: 'order-{n}'", 57),
    ("thumbnails", "render_thumbnail", "max_timeouts", "WorkerDiedError: killed by signal 9", 18),
    ("webhooks", "notify_partner", "rejected", "ValidationError: no user {n}", 9),
    ("orders", "place_order", "max_receives", "OperationalError: deadlock detected on row {n}", 4),
    ("exports", "export_orders", "expired", "", 1),
)  # fmt: skip

_LIMITS: Final = (
    ("webhooks", LimitLoad("partner-7", Limit(rate="10/s"), 1, 31, 2, 0, NOW_MS + 2_500)),
    ("emails", LimitLoad("*", Limit(concurrency=8), 14, 1_284, 64, 3, None)),
)
#: Background, foreground, then the sixteen colours of a terminal.
_DARK: Final = """
181a1f cdd2da 282c34 f07178 98c379 e5c07b 4b78be c678dd 60bac6 abb2bf
5c6370 ff8c91 afd791 f5d796 78aaf0 d796eb 7dd2dc ffffff
"""
_LIGHT: Final = """
fcfcfa 2c3038 2c3038 be232d 287832 915f00 285aaf 8c3296 007382 828791
646973 d73c46 3c9146 af7800 4678d2 a550af 148c9b ffffff
"""


def _theme(colours: str) -> TerminalTheme:
    background, foreground, *rest = [(*bytes.fromhex(colour),) for colour in colours.split()]
    return TerminalTheme(background, foreground, rest[:8], rest[8:])


DARK: Final = _theme(_DARK)
LIGHT: Final = _theme(_LIGHT)


class Scene(Top):
    """The screen with one sample, which nothing follows."""

    def __init__(self, glyphs: Glyphs = UNICODE, *, shown: Sample | None = None) -> None:
        url = ServerURL.parse("redis://queues.internal:6379")
        client = Client(ConnectionFactory(url, name="scene"), give_up_s=0.1)
        super().__init__(Namespace("shop", client, url, url), glyphs=glyphs)
        self.scene = sample() if shown is None else shown

    async def _follow(self) -> None:
        self.take(self.scene)
        found = DeadGroups(tuple(_dead_rows()), 862, 862)
        self.dead.take(found, ("", self.dead.numbers()))
        self.tasks.paused = {"export_orders": NOW_MS - 5_400_000}
        self.tasks.update(self.scene)
        self.limits.found = self.limits.found or _LIMITS
        self.limits.update(self.scene)
        self.draw()

    def _read_dead(self) -> None:
        pass

    def _read_tasks(self) -> None:
        pass

    def _read_limits(self) -> None:
        pass


def sample() -> Sample:
    """All tables at once: backlogs, failures, a paused queue, a broken one, hung handlers, a worker that is gone."""
    chance = random.Random(2031)
    queues: dict[str, Inspection | BrokenQueueError] = {}
    earlier: dict[str, Inspection] = {}
    ready: dict[str, Series] = {}
    done: dict[str, Series] = {}
    for name, row in _QUEUES.items():
        queues[name], earlier[name] = (
            _inspection(name, row, NOW_MS, 10),
            _inspection(name, row, NOW_MS - 10_000, 0),
        )
        ready[name] = _series(row[0], chance, grows=row[1] > 100)
        done[name] = _series(row[6], chance)
    queues["legacy"] = BrokenQueueError("shop:{legacy}:delayed", "string")
    read = [queue for queue in queues.values() if isinstance(queue, Inspection)]
    totals = {
        "sent": _series(sum(row[5] for row in _QUEUES.values()), chance),
        "done": _series(sum(row[6] for row in _QUEUES.values()), chance),
        "failed": _series(sum(row[7] for row in _QUEUES.values()), chance, spikes=True),
        "ready": _series(sum(queue.ready for queue in read), chance, grows=True),
        "oldest": _series(5_403, chance, grows=True),
        "dead": _series(sum(queue.dead for queue in read), chance, grows=True),
    }
    return Sample(
        1, NOW_MS, dict(sorted(queues.items())), earlier, _workers(), (ReaperInfo("web-1:812:a1", 400),),
        _findings(), totals, ready, done,
    )  # fmt: skip


async def picture(
    scene: Scene, size: tuple[int, int], keys: Sequence[str], theme: TerminalTheme
) -> str:
    """Press keys, and draw the screen as SVG in the colours of a terminal."""
    async with scene.run_test(size=size) as pilot:
        await pilot.pause()
        await pilot.press(*keys)
        await pilot.pause()
        return svg(scene, theme)


def svg(app: Any, theme: TerminalTheme) -> str:
    """Draw the screen as `export_screenshot` does, in the colours of a terminal."""
    width, height = app.size
    console = Console(
        width=width,
        height=height,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        record=True,
        legacy_windows=False,
        safe_box=False,
    )
    layers = app._background_screens
    console.print(app.screen._compositor.render_update(full=True, screen_stack=layers))
    return console.export_svg(title="qworker top", theme=theme)


def _inspection(name: str, row: tuple[Any, ...], now_ms: int, gained_s: int) -> Inspection:
    ready, oldest_s, leases, delayed, dead, sent, done, failed, paused = row
    stats = {
        "unacked": leases,
        "sent": round(1e6 + sent * gained_s),
        "acked": round(9e5 + done * gained_s),
        "nacked": round(500 + failed * gained_s),
        "received": 910_000,
        "dead": dead,
    }
    return Inspection(
        name,
        now_ms,
        (ready, *(0,) * 9),
        0,
        delayed,
        leases,
        dead,
        now_ms - int(oldest_s * 1000) if ready else None,
        now_ms + 4_000 if delayed else None,
        now_ms + 21_000 if leases else None,
        stats,
        {"paused": paused} if paused else {},
    )


def _series(
    level: float, chance: random.Random, *, grows: bool = False, spikes: bool = False
) -> Series:
    series, phase = Series(1.0), 6 * chance.random()
    for at in range(_HOUR_POINTS):
        part = at / _HOUR_POINTS
        wave = 0.55 + 0.25 * math.sin(part * 9 + phase) + 0.3 * (chance.random() - 0.5)
        shape = part**2 * (0.9 + 0.2 * chance.random()) if grows else wave
        if spikes:
            shape = 1.0 if 70 < at < 84 else 0.12 * chance.random()
        series.add(at * 30.0, level * shape)
    series.add(_HOUR_POINTS * 30.0, level * (1.0 if grows else 0.7))
    return series


def _workers() -> tuple[Worker, ...]:
    def worker(
        number: int, queues: str, running: Sequence[tuple[str, float]], **more: Any
    ) -> Worker:
        age_ms = more.pop("age_ms", 700)
        children = tuple(
            ChildDocument(
                pid=2_100 + 40 * number + at,
                state="running",
                handled=48_210 + 977 * at,
                failed=at,
                rss_bytes=(94 + 7 * at) * 2**20,
                running=tuple(
                    RunningDocument(task=task, id=f"lease{number}{at}{index}:0", seconds=seconds)
                    for index, (task, seconds) in enumerate(running)
                    if index % 2 == at
                ),
            )
            for at in range(2)
        )
        described = WorkerDocument(
            name=f"web-{number}-{number * 7919:x}",
            host=f"web-{number}",
            pid=800 + number,
            app="shop.tasks",
            started_ms=NOW_MS - 86_400_000,
            seen_ms=NOW_MS - age_ms,
            queues=tuple(queues.split()),
            tasks=(*_TASKS, "export_orders"),
            concurrency=16,
            handled_per_s=41.3 / number,
            children=children,
            **more,
        )
        return Worker(described.name, age_ms, described)

    return (
        worker(1, "emails orders payments", [("send_email", 1.2), ("charge_card", 0.4)]),
        worker(2, "emails webhooks", [("send_email", 71.0), ("notify_partner", 8.1)]),
        worker(3, "thumbnails", [("render_thumbnail", 1_904.0), ("render_thumbnail", 212.0)]),
        worker(4, "stock-sync search-index", [("sync_stock", 0.9)], leaving=True),
        worker(5, "reports exports", [], age_ms=94_000),
    )


def _findings() -> tuple[Finding, ...]:
    return (
        Finding("server", Status.OK, "valkey 9.1.2, 3 ms away"),
        Finding("durability", Status.WARNING, "appendonly is off: a crash loses what was sent since the last save",
                "CONFIG SET appendonly yes"),
        Finding("queue.legacy", Status.PROBLEM, "legacy is broken: shop:{legacy}:delayed is a string",
                "qworker fsck legacy"),
        Finding("paused", Status.WARNING, "paused: exports (out)", "qworker queue resume exports"),
        Finding("workers.gone", Status.WARNING, "web-5-9aab was last seen 1m34s ago",
                "start it again: qworker run MODULE"),
    )  # fmt: skip


def _dead_rows() -> list[DeadRow]:
    rows = []
    for queue, task, reason, error, number in _ERRORS:
        letters = []
        for at in range(number):
            died_ms = (
                NOW_MS
                - 38_000 * number**2 // (number + 60)
                - at * (41_000 if number > 50 else 900_000)
            )
            fields: dict[bytes, bytes] = {
                b"envelope": b'q1 m%d %d 0 5 5 0\n{"task": "%s", "args": [%d]}'
                % (at, died_ms - 9_000, task.encode(), at),
                b"reason": reason.encode(),
                b"error": error.partition(": ")[2].replace("{n}", str(1000 + at)).encode(),
                b"class": error.partition(":")[0].encode(),
            }
            letters.append(_letter(queue, died_ms, fields))
        rows += [DeadRow(queue, group, True, NOW_MS) for group in group_by_error(letters).values()]
    return rows


def _letter(queue: str, died_ms: int, fields: dict[bytes, bytes]) -> DeadLetter:
    flat = [word for pair in fields.items() for word in pair]
    return DeadLetter.of(QueueKeys("shop", queue), f"{died_ms}-0".encode(), flat)
