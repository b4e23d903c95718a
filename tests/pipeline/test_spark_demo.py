"""`qworker demo --spark DIR`: the whole way from a run with a killed worker to its report."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from qworker.cli.main import cli
from qworker.demo.history import check_history
from qworker.errors import InvalidOptionError
from qworker.pipeline.failures import silence_py4j
from qworker.pipeline.jobs.local import of_few
from qworker.pipeline.report import document as report

PARTITIONS = "spark.sql.shuffle.partitions"
BODY = (
    "import os\n" + "class A:\n    def method(self):\n        return [n for n in range(10)]\n" * 20
)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_event_is_archived_and_every_message_accounted_for(spark, tmp_path, monkeypatch):
    sources = tmp_path / "sources"
    sources.mkdir()
    for number in range(40):
        (sources / f"good_{number:02}.py").write_text(BODY)
    (sources / "latin.py").write_bytes(b"# coding: latin-1\nname = '\xe9'\n")
    words = ["demo", str(sources), "--procs", "2", "--spark", str(tmp_path / "out"), "--json"]
    partitions, few, make = spark.conf.get(PARTITIONS), [], report.make_document

    def noted(events, *given):
        few.append(of_few(events))
        return make(events, *given)

    monkeypatch.setattr("qworker.pipeline.report.make_document", noted)
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.stderr
    assert few == [True], "few events are reported on in the driver"
    assert spark.conf.get(PARTITIONS) == partitions, "a session of the process keeps its settings"
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["archived"] == document["events"] > 3 * document["messages"] - 10
    # The handler that a killed worker ran is run again, and sends its results again.
    assert document["messages"] >= 123
    numbers = {name: document[name] for name in ("acked", "dead", "open", "lost")}
    assert numbers == {"acked": document["messages"] - 1, "dead": 1, "open": 0, "lost": 0}
    faults = ("acked_twice", "started_after_ack", "unsure", "gaps")
    assert [document[name] for name in faults] == [0, 0, 0, 0]
    assert document["demo"]["sent"] == document["messages"]
    assert "Throughput" in Path(document["report"]).read_text()
    assert list(Path(document["archive"]).glob("queue=*/day=*/*.parquet"))


def test_a_directory_that_holds_something_is_refused_before_the_run(tmp_path):
    (tmp_path / "precious").touch()
    with pytest.raises(InvalidOptionError, match="is not empty; name a directory that is new"):
        check_history(tmp_path)


def test_a_ctrl_c_while_spark_works_logs_no_traceback(monkeypatch, caplog):
    """py4j writes it to the root logger and raises it as well; what others write there stays."""
    monkeypatch.setattr(logging.getLogger(), "filters", [])
    silence_py4j()
    for module in ("py4j/java_gateway.py", "shop/orders.py"):
        exec(
            compile("import logging; logging.error('sending')", f"/site-packages/{module}", "exec")
        )
    assert [record.pathname for record in caplog.records] == ["/site-packages/shop/orders.py"]
