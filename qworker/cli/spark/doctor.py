"""`qworker spark doctor`: check everything that Spark needs once, and suggest fixes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.framework.commands import VerbCommand, json_option
from qworker.cli.framework.errors import FOUND, NO_JAVA
from qworker.cli.framework.output import Line, Output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from qworker.cli.framework.context import Session
    from qworker.health.finding import Finding

__all__ = ["command", "send_and_read"]

_ROWS: Final = 10
_INSTALL: Final = "pip install 'qworker-redis[spark]'"


@click.command(cls=VerbCommand)
@click.option(
    "--master", default="local[2]", metavar="URL", show_default=True, help="Spark master."
)
@json_option
@click.pass_obj
def command(session: Session, master: str) -> Iterator[Output]:
    """Check Java, packages and server, and send 10 rows through Spark and back; suggest fixes.

    The rows go to a temporary queue. Exit code 3 if anything is wrong, 4 without Java.
    """
    from qworker.cli.doctor import text_of
    from qworker.health.finding import Status

    findings = []
    for finding in _examine(session, master):
        findings.append(finding)
        yield Output(text=text_of(finding))
    wrong = [finding.check for finding in findings if finding.status is Status.PROBLEM]
    yield Output(
        {"healthy": not wrong, "findings": [finding.document() for finding in findings]},
        [Line(), f"wrong: {', '.join(wrong)}" if wrong else "Spark works"],
    )
    if wrong:
        raise click.exceptions.Exit(NO_JAVA if "java" in wrong else FOUND)


def _examine(session: Session, master: str) -> Iterator[Finding]:
    from qworker.health.finding import Status

    wrong = []
    for finding in (*_java(), *_packages(), *_server(session)):
        yield finding
        if finding.status is Status.PROBLEM:
            wrong.append(finding.check)
    yield from _round_trip(session, master, wrong)


def _java() -> Iterator[Finding]:
    from qworker.errors import JavaMissingError
    from qworker.health.finding import Finding, Status
    from qworker.pipeline.java import find_java

    try:
        java = find_java()
    except JavaMissingError as error:
        problem = "; ".join(error.refused) or "not installed"
        yield Finding(
            "java",
            Status.PROBLEM,
            problem,
            "install Java 17 or newer (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME, "
            "or install it as a wheel: pip install 'qworker-redis[jre]'",
        )
        return
    yield Finding("java", Status.OK, f"Java {java.version}, found by {java.source}: {java.path}")


def _packages() -> Iterator[Finding]:
    from importlib.metadata import version

    from redis.utils import HIREDIS_AVAILABLE

    from qworker.health.finding import Finding, Status
    from qworker.pipeline.session import NEEDS, package_problem

    for module in NEEDS:
        if problem := package_problem(module):
            yield Finding(module, Status.PROBLEM, problem, _INSTALL)
        else:
            yield Finding(module, Status.OK, version(module))
    if HIREDIS_AVAILABLE:
        yield Finding("hiredis", Status.OK, version("hiredis"))
    else:
        yield Finding(
            "hiredis",
            Status.PROBLEM,
            "missing: reads are 4 to 8 times slower",
            "pip install hiredis",
        )


def _server(session: Session) -> Iterator[Finding]:
    from qworker.errors import QworkerError
    from qworker.health.finding import Finding, Status

    session.patience_s = 2.0
    try:
        session.ask("PING")
    except QworkerError as error:
        fix = "set QWORKER_URL, or run qworker doctor"
        yield Finding("server", Status.PROBLEM, str(error), fix)
    else:
        yield Finding("server", Status.OK, f"{session.url} answers")


def _round_trip(session: Session, master: str, wrong: list[str]) -> Iterator[Finding]:
    from qworker.cli.spark.reading import source_options
    from qworker.health.finding import Finding, Status
    from qworker.pipeline.session import open_session

    if wrong:
        yield Finding("round trip", Status.WARNING, f"skipped: fix {', '.join(wrong)} first")
        return
    spark, options = None, source_options(session)
    try:
        begun = time.perf_counter()
        spark = open_session(app="qworker-doctor", master=master)
        started_s = time.perf_counter() - begun
        seconds = send_and_read(session, spark, options)
    except Exception as error:  # noqa: BLE001  any error is the finding
        yield Finding(
            "round trip",
            Status.PROBLEM,
            f"{type(error).__name__}: {str(error).strip().rpartition(chr(10))[2][:500]}",
            "QWORKER_DEBUG=1 qworker spark sql 'select 1' shows the whole error",
        )
        return
    finally:
        if spark is not None:
            spark.stop()
    yield Finding(
        "round trip",
        Status.OK,
        f"Spark started in {started_s:.1f} s; {_ROWS} rows were sent and read back in {seconds:.1f} s",
    )


def send_and_read(session: Session, spark: SparkSession, options: Mapping[str, str]) -> float:
    """Send rows to a temporary queue, read them back and remove it; returns the seconds that it took.

    `options` of the data source name the server. Raises `PipelineError` if other rows come back.
    """
    from qworker.client.queue import Queue
    from qworker.errors import PipelineError

    queue = Queue(session.client, session.namespace, f"spark-doctor-{secrets.token_hex(4)}")
    sent = [f'{{"row": {number}}}' for number in range(_ROWS)]
    begun = time.perf_counter()
    try:
        rows = spark.createDataFrame([(body,) for body in sent], "body STRING")
        writer = rows.write.format("qworker").options(**options).option("queue", queue.name)
        writer.option("writeId", queue.name).mode("append").save()
        reader = spark.read.format("qworker").options(**options).option("queues", queue.name)
        stored = reader.option("includeBody", "true").load("messages").select("body").collect()
    finally:
        queue.remove()
        session.ask("UNLINK", queue.keys.bulk(queue.name))
    if sorted(row.body for row in stored) != sorted(sent):
        raise PipelineError(f"read back {len(stored)} of {len(sent)} rows, or different ones")
    return time.perf_counter() - begun
