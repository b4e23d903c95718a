"""The example of the archive: all of its cells, on a journal with ten messages."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.pipeline.redis_journals import T0_MS, ForgedJournal, line
from tests.topologies.servers import client_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "lake.py"


@pytest.mark.nightly("pipeline/test_jobs.py::test_sql_reads_history_and_state")
def test_every_reader_sees_the_archived_events(
    spark, store_url, namespace, tmp_path, monkeypatch, capsys
):
    with client_of(store_url) as client:
        journal = ForgedJournal(client, namespace, "emails")
        for number in range(10):
            at = T0_MS + 1000 * number
            journal.write(line("sent", f"m{number}", sent=at), t=at)
            journal.write(
                line(
                    "acked",
                    f"m{number}",
                    sent=at,
                    delivered=at + 5,
                    started=at + 6,
                    run_us=2000,
                    task="send_email",
                ),
                t=at + 9,
            )
    for name, value in (
        ("QWORKER_URL", store_url),
        ("NAMESPACE", namespace),
        ("LAKE", str(tmp_path / "lake")),
    ):
        monkeypatch.setenv(name, value)
    cells = runpy.run_path(str(EXAMPLE))
    shown = capsys.readouterr().out
    assert "archived 20 events" in shown
    assert [tuple(row) for row in cells["per_task"].collect()] == [("send_email", 10, 2.0)]
    assert re.search(r"emails\W+acked\W+10\b", shown)
    assert re.search(r"emails\W+20\b", shown)
    assert spark.read.parquet(str(tmp_path / "lake-attempts")).count() == 10
    assert [row["count"] for row in spark.read.parquet(str(tmp_path / "lake-daily")).collect()] == [
        10
    ]
