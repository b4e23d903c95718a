"""Forged journals: rows of the table `journal`, without a server.

journal = Journal("emails")
journal.write("a", "sent@0 delivered@10 acked@30")      event@ms after T0; message a
journal.write("b", "sent@5 dead@90:max_receives")       event@ms:reason
journal.frame(spark)
store(lake, journal)                                   in an archive, as a commit
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from qworker.pipeline.jobs.files import EventFile, write_events
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.local import local_frame
from qworker.pipeline.session import session_of_few
from qworker.pipeline.source.schemas import arrow_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["COLUMNS", "T0", "Journal", "at", "forget_offsets", "frame", "store"]

T0 = datetime(2031, 5, 4, 10, 0, tzinfo=UTC)
EPOCH = int(T0.timestamp() * 1000)
COLUMNS = (
    "queue STRING, shard INT, epoch BIGINT, entry BIGINT, number BIGINT, event STRING, message_id STRING, attempt INT, "
    "ts TIMESTAMP, sent_ts TIMESTAMP, ready_ts TIMESTAMP, delivered_ts TIMESTAMP, started_ts TIMESTAMP, "
    "wait_ms DOUBLE, run_ms DOUBLE, age_ms BIGINT, task STRING, reason STRING, error_class STRING, worker STRING, "
    "trace_id STRING"
)
NAMES = tuple(column.split()[0] for column in COLUMNS.split(", "))
OF_A_DELIVERY = ("delivered", "acked", "nacked", "released", "timed_out", "discarded", "dead")


def at(ms: float) -> datetime:
    return T0 + timedelta(milliseconds=ms)


@dataclass
class Journal:
    """The journal of one queue; events get the numbers 0, 1, 2 … in the order in which they are written."""

    queue: str = "emails"
    epoch: int = EPOCH
    number: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    #: When each message was sent, in ms: all of its events have that.
    sent: dict[str, float] = field(default_factory=dict)

    def write(self, message: str, steps: str, **fields: Any) -> None:
        """Write the events of a message; `fields` are put into each of its rows."""
        sent = self.sent.get(message)
        ready = delivered = None
        attempt = 0
        for step in steps.split():
            event, _, rest = step.partition("@")
            ms_text, _, reason = rest.partition(":")
            ms = float(ms_text)
            sent = self.sent[message] = ms if sent is None or event == "sent" else sent
            ready = sent if ready is None else ready
            if event == "delivered":
                delivered, attempt = ms, attempt + 1
            has_delivery = event in OF_A_DELIVERY and delivered is not None
            self.add(
                event=event,
                message_id=message,
                attempt=attempt if event in OF_A_DELIVERY else 0,
                ts=at(ms),
                sent_ts=at(sent),
                ready_ts=at(ready),
                delivered_ts=at(delivered) if has_delivery else None,
                started_ts=at(delivered) if has_delivery and event != "delivered" else None,
                wait_ms=delivered - ready if has_delivery else None,
                run_ms=ms - delivered if has_delivery and event != "delivered" else None,
                age_ms=int(ms - sent),
                reason=reason or None,
                **fields,
            )
            if event in ("nacked", "released", "timed_out", "redriven"):
                ready = ms

    def add(self, **fields: Any) -> None:
        """Write one event with the next number, as its own entry."""
        row: dict[str, Any] = dict.fromkeys(NAMES)
        row |= {"queue": self.queue, "shard": 0, "epoch": self.epoch, "worker": "web-1:7"}
        row |= {"entry": self.number, "number": self.number, "task": "send_email", **fields}
        self.rows.append(row)
        self.number += 1

    def sort(self, first: int = 0) -> Journal:
        """Number the events again, by their time."""
        self.rows.sort(key=lambda row: row["ts"])
        for number, row in enumerate(self.rows, first):
            row["number"] = row["entry"] = number
        return self

    def frame(self, spark: SparkSession) -> DataFrame:
        return frame(spark, self)


def frame(spark: SparkSession, *journals: Journal, many: bool = False) -> DataFrame:
    """Make the DataFrame of some queues: read as few events are, in one task, or as many are, in several."""
    session = spark if many else session_of_few(spark)
    rows = [tuple(row[name] for name in NAMES) for journal in journals for row in journal.rows]
    return local_frame(
        session, rows, pa.schema([arrow_of("journal").field(name) for name in NAMES])
    )


def store(lake: Lake, *journals: Journal, offsets: dict[str, Any] | None = None) -> list[EventFile]:
    """Put the events of some queues into an archive."""
    schema = arrow_of("journal")
    lake.create("shop")
    batches = [pa.RecordBatch.from_pylist(journal.rows, schema) for journal in journals]
    files = write_events(batches, lake.root, name=f"part-{secrets.token_hex(16)}")
    lake.commit(files, after=lake.last(), offsets=offsets)
    return files


def forget_offsets(lake: Lake) -> None:
    """Take the offsets out of the log of an archive, as if other tools had rewritten it."""
    for commit in (lake.root / "_delta_log").glob("*.json"):
        commit.write_text(commit.read_text().replace("qworker.offsets", "forgotten"))
