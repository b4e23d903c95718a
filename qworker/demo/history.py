"""What Spark makes of a demo's journal: archived, reported on and audited, while the store is still there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qworker.demo.app import NAMESPACE, QUEUES, app
from qworker.errors import InvalidOptionError

if TYPE_CHECKING:
    from qworker.demo.view import View
    from qworker.pipeline.jobs.audit import Audit

__all__ = ["History", "check_history", "make_history"]


@dataclass(frozen=True, slots=True)
class History:
    """What came of it. `events`: as the server counted them; `archived`: distinct rows of the archive."""

    events: int
    archived: int
    found: Audit
    archive: Path
    report: Path
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 where every event is in the archive and the audit found nothing, else 1."""
        return 1 if self.archived != self.events or self.found.wrong else 0

    def document(self) -> dict[str, Any]:
        """Write it as JSON takes it."""
        found = self.found
        return {
            "events": self.events,
            "archived": self.archived,
            "messages": found.messages,
            "acked": found.ended.get("acked", 0),
            "dead": found.dead,
            "lost": found.lost,
            "acked_twice": found.acked_twice,
            "started_after_ack": found.started_after_ack,
            "open": found.open,
            "unsure": found.unsure,
            "gaps": found.gaps,
            "report": str(self.report),
            "archive": str(self.archive),
            "spark_seconds": round(self.seconds, 1),
        }


def check_history(directory: Path) -> None:
    """Raise before the demo begins: Spark or Java missing, or a directory that holds something else."""
    from qworker.pipeline.jobs.report import check_charts
    from qworker.pipeline.source.java import find_java
    from qworker.pipeline.source.session import check_packages

    check_packages()
    check_charts()
    find_java()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InvalidOptionError(
            "--spark", f"{str(directory)!r} is not empty", "name a directory that is new or empty"
        )


def make_history(url: str, directory: Path, view: View) -> History:
    """Archive, report on and audit what the demo's queues have journalled. Raises what Spark raises."""
    from qworker.pipeline.jobs.archive import archive, read_archive
    from qworker.pipeline.jobs.audit import Window
    from qworker.pipeline.jobs.lake import Lake
    from qworker.pipeline.jobs.reading import audit_all, server_options
    from qworker.pipeline.jobs.report import Scope, make_document, render
    from qworker.pipeline.source.session import open_session

    begun = time.monotonic()

    def say(text: str) -> None:
        view.say(f"  {time.monotonic() - begun:4.1f} s   {text}", "dim")

    view.say("The journal of all this, with Spark:", "title")
    source = server_options(url, NAMESPACE)
    # A demo is small: starting many tasks would cost more than they do.
    spark = open_session(app="qworker-demo", settings={"spark.sql.shuffle.partitions": "4"})
    say("Spark has started")
    lake = Lake(directory / "archive")
    with lake.writing():
        done = archive(spark, lake, {**source, "readerName": "demo"}, once=True)
    say(f"archived {done.events:,} events in {lake.root}")
    events = read_archive(spark, lake)
    rows = events.select("queue", "shard", "epoch", "number").distinct().count()
    report = (directory / "report.html").absolute()
    document = make_document(events, Scope(NAMESPACE, "the archive of the demo"))
    report.write_text(render(document), encoding="utf-8")
    say(f"wrote the report: {report}")
    found = audit_all(spark, window=Window(), lake=lake, source=source)
    ends = ", ".join(f"{number:,} {event}" for event, number in sorted(found.ended.items()))
    say(f"audited {found.messages:,} messages: {ends}, {found.dead:,} dead")
    wrong = ", ".join(f"{number:,} {name}" for name, number in found.wrong.items())
    if wrong:
        say(f"WRONG: {wrong}")
    else:
        say(
            "every message is accounted for: none lost, none acked twice, none started after its ack"
        )
    view.say("")
    return History(_counted(), rows, found, lake.root, report, time.monotonic() - begun)


def _counted() -> int:
    """Events that the server says it has journalled."""
    from qworker.client.commands.inspecting import inspect

    seen = (app.client.execute(inspect(app.queue(name).keys)) for name in QUEUES)
    return sum(each.stats.get("journal_events", 0) for each in seen)
