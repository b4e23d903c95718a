"""Archives, reports on and audits a demo's journal with Spark, while the store still runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qworker.demo.app import NAMESPACE, QUEUES, app
from qworker.errors import InvalidOptionError

if TYPE_CHECKING:
    from qworker.demo.view import DemoOutput
    from qworker.pipeline.jobs.audit import AuditResult

__all__ = ["History", "check_history", "make_history"]


@dataclass(frozen=True, slots=True)
class History:
    """The result. `events`: the server's count; `archived`: distinct rows of the archive."""

    events: int
    archived: int
    audit: AuditResult
    archive: Path
    report: Path
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 if every event is in the archive and the audit found nothing wrong, else 1."""
        return 1 if self.archived != self.events or self.audit.wrong else 0

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        audit = self.audit
        return {
            "events": self.events,
            "archived": self.archived,
            "messages": audit.messages,
            "acked": audit.ended.get("acked", 0),
            "dead": audit.dead,
            "lost": audit.lost,
            "acked_twice": audit.acked_twice,
            "started_after_ack": audit.started_after_ack,
            "open": audit.open,
            "unsure": audit.unsure,
            "gaps": audit.gaps,
            "report": str(self.report),
            "archive": str(self.archive),
            "spark_seconds": round(self.seconds, 1),
        }


def check_history(directory: Path) -> None:
    """Raise before the demo begins if the directory is not empty, or if Spark or Java is missing."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InvalidOptionError(
            "--spark", f"{str(directory)!r} is not empty", "name a directory that is new or empty"
        )

    from qworker.pipeline.java import find_java
    from qworker.pipeline.report import check_charts
    from qworker.pipeline.session import check_packages

    check_packages()
    check_charts()
    find_java()


def make_history(url: str, directory: Path, view: DemoOutput) -> History:
    """Archive, report on and audit the journals of the demo's queues. Raises what Spark raises."""
    from qworker.pipeline.failures import silence, silence_py4j
    from qworker.pipeline.jobs.archive import archive
    from qworker.pipeline.jobs.audit import Window
    from qworker.pipeline.jobs.lake import Lake
    from qworker.pipeline.jobs.reading import read_events, server_options
    from qworker.pipeline.jobs.run_audit import audit_all
    from qworker.pipeline.report import Scope, make_document, render
    from qworker.pipeline.session import OF_COMMANDS, open_session

    begun = time.monotonic()

    def say(text: str) -> None:
        view.say(f"  {time.monotonic() - begun:4.1f} s   {text}", "dim")

    view.say("The journal of all this, with Spark:", "title")
    source = server_options(url, NAMESPACE)
    silence_py4j()
    spark = open_session(app="qworker-demo", settings=OF_COMMANDS)
    silence(spark)
    say("Spark has started")
    lake = Lake(directory / "archive")
    done = archive(spark, lake, {**source, "readerName": "demo"}, once=True)
    say(f"archived {done.events:,} events in {lake.root}")
    events = read_events(spark, lake=lake)
    rows = events.select("queue", "shard", "epoch", "number").distinct().count()
    report = (directory / "report.html").absolute()
    document = make_document(events, Scope(NAMESPACE, "the archive of the demo"))
    report.write_text(render(document), encoding="utf-8")
    say(f"wrote the report: {report}")
    audit = audit_all(spark, window=Window(), lake=lake, source=source)
    ends = ", ".join(f"{number:,} {event}" for event, number in sorted(audit.ended.items()))
    say(f"audited {audit.messages:,} messages: {ends}, {audit.dead:,} dead")
    wrong = ", ".join(f"{number:,} {name}" for name, number in audit.wrong.items())
    if wrong:
        say(f"WRONG: {wrong}")
    else:
        say(
            "every message is accounted for: none lost, none acked twice, none started after its ack"
        )
    view.say("")
    return History(
        _counted(),
        rows,
        audit,
        (directory / "archive").absolute(),
        report,
        time.monotonic() - begun,
    )


def _counted() -> int:
    """The server's count of journalled events."""
    from qworker.engine.inspect import inspect

    inspections = (app.client.execute(inspect(app.queue(name).keys)) for name in QUEUES)
    return sum(seen.stats.get("journal_events", 0) for seen in inspections)
