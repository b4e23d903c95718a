"""Few events are read in the driver and judged as many are."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from py4j.protocol import CALL_COMMAND_NAME, REFLECTION_COMMAND_NAME
from pyspark.errors import ArithmeticException
from pyspark.sql import functions

from benchmarks.lake import Launched
from qworker.client.execute.sync import Client
from qworker.pipeline.jobs.audit import Window
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.live import read_live
from qworker.pipeline.jobs.local import of_few
from qworker.pipeline.jobs.reading import read_events, server_options
from qworker.pipeline.jobs.run_audit import audit_all
from qworker.store.connections import ConnectionFactory
from tests.pipeline.forging import Journal, store
from tests.pipeline.test_archive import journalled
from tests.pipeline.test_audit_compositions import Shop, late_decision, steps_again

pytestmark = pytest.mark.slow

FEW = "spark.qworker.fewRows"
OF_THE_MOMENT = ("age_ms", "oldest_ready_age_ms", "snapshot_ts")


@pytest.fixture
def lake(tmp_path) -> Lake:
    """An archive of queues with and without wrongs."""
    clean, wrong, cut = Journal("clean"), Journal("wrong"), Journal("cut")
    for number in range(30):
        clean.write(f"m{number}", f"sent@{number} delivered@{number + 5} acked@{number + 9}")
    wrong.write("a", "sent@0 delivered@1 acked@2 acked@3 delivered@4")
    wrong.write("b", "sent@5 delivered@6 dead@7:rejected")
    cut.write("c", "sent@0 delivered@1 nacked@2 delivered@3")
    del cut.rows[2]
    shop = Shop("shop")
    steps_again(shop)
    late_decision(shop)
    lake = Lake(tmp_path / "lake")
    store(lake, clean, wrong, cut, shop.backs, shop.calls)
    return lake


@pytest.mark.nightly(
    "pipeline/test_audit.py::test_each_finding_names_the_queues_that_it_is_about_and_no_others"
)
def test_few_events_are_judged_as_many_are_in_a_fraction_of_the_tasks(spark, lake):
    """Findings of each kind, with their samples."""
    results, tasks, launched = [], [], Launched(spark)
    for most in ("10000", "0"):
        spark.conf.set(FEW, most)
        results.append(audit_all(spark, window=Window(), lake=lake))
        tasks.append(launched()["tasks"])
    spark.conf.unset(FEW)
    assert results[0] == results[1]
    found = results[0].document()
    kinds = ("acked_twice", "started_after_ack", "missing", "step_twice", "dead", "open")
    assert all(found[kind] for kind in kinds), found
    assert tasks[0] * 3 < tasks[1]


def test_calls_of_columns_do_not_look_up_the_line_that_they_come_from(spark):
    """An error tells it where they do."""
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO") as raised:
        spark.range(1).select(functions.col("id") / functions.lit(0)).collect()
    assert "test_few.py" not in str(raised.value)


def test_java_is_asked_once_for_the_classes_of_columns(spark, monkeypatch):
    """Each question is a search of all of Spark's jars."""

    def columns():
        return spark.range(1).agg(functions.max(functions.col("id")), functions.lit(1))

    columns()
    client, commands = type(spark.sparkContext._gateway._gateway_client), []
    send = client.send_command

    def told(self, command, *more, **given):
        commands.append(command.partition("\n")[0])
        return send(self, command, *more, **given)

    monkeypatch.setattr(client, "send_command", told)
    columns()
    assert commands.count(CALL_COMMAND_NAME.strip()) >= 4
    assert REFLECTION_COMMAND_NAME.strip() not in commands


def test_the_limit_counts_events_of_the_archive_and_carried_ones(spark, lake):
    rows = read_events(spark, lake=lake).count()
    assert of_few(read_events(spark, lake=lake, beside=10_000 - rows))
    assert not of_few(read_events(spark, lake=lake, beside=10_001 - rows))
    assert not of_few(read_events(spark, lake=lake, beside=None))


def test_a_table_of_the_server_is_read_as_spark_reads_it_up_to_a_limit(spark, store_url):
    namespace = f"few{datetime.now(UTC).timestamp():.0f}"
    source = server_options(store_url, namespace)
    with Client(ConnectionFactory(store_url), give_up_s=10.0) as client:
        for name in ("a", "b"):
            queue = journalled(client, namespace, name)
            queue.send_many([b"{}"] * 5)
            queue.receive(2)
    for name, least in (("journal", 14), ("messages", 10), ("queues", 2)):
        read = spark.read.format("qworker").options(**source).option("table", name).load().toArrow()
        rows = read.num_rows
        assert rows >= least
        table = read_live(source, name, rows)
        assert table is not None
        columns = [each for each in table.schema.names if each not in OF_THE_MOMENT]
        assert _sorted(table, columns) == _sorted(read, columns)
        assert read_live(source, name, rows - 1) is None
        assert read_live(source, name, -1) is None


def _sorted(table: pa.Table, columns: list[str]) -> list[str]:
    return sorted(map(repr, table.select(columns).to_pylist()))
