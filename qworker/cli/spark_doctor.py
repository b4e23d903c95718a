"""`qworker spark doctor`: check everything that Spark needs once, and say what to do."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.failures import FOUND, NO_JAVA
from qworker.cli.screen import print_json, print_line
from qworker.cli.verbs import Verb, json_option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from qworker.cli.finding import Finding
    from qworker.cli.session import Session

__all__ = ["command", "send_and_read"]

_ROWS: Final = 10
_INSTALL: Final = "pip install 'qworker-redis[spark]'"


@click.command(cls=Verb)
@click.option(
    "--master", default="local[2]", metavar="URL", show_default=True, help="Spark's master."
)
@json_option
@click.pass_obj
def command(session: Session, master: str, as_json: bool) -> None:
    """Check Java, packages and server, and send 10 rows through Spark and back; say what to do.

    The rows go to a queue of their own, which is removed. Exit code 3 if something is wrong, 4 where there is no Java.
    """
    from qworker.cli.doctor import print_finding
    from qworker.cli.finding import Status

    findings = []
    for finding in _examine(session, master):
        findings.append(finding)
        if not as_json:
            print_finding(finding)
    wrong = [each.check for each in findings if each.status is Status.PROBLEM]
    if as_json:
        documents = [each.document() for each in findings]
        print_json({"healthy": not wrong, "findings": documents})
    else:
        print_line()
        print_line(f"wrong: {', '.join(wrong)}" if wrong else "Spark works")
    if wrong:
        raise click.exceptions.Exit(NO_JAVA if "java" in wrong else FOUND)


def _examine(session: Session, master: str) -> Iterator[Finding]:
    from qworker.cli.finding import Status

    wrong = []
    for finding in (*_java(), *_packages(), *_server(session)):
        yield finding
        if finding.status is Status.PROBLEM:
            wrong.append(finding.check)
    yield from _round_trip(session, master, wrong)


def _java() -> Iterator[Finding]:
    from qworker.cli.finding import Finding, Status
    from qworker.errors import JavaMissingError
    from qworker.pipeline.source.java import find_java

    try:
        java = find_java()
    except JavaMissingError as error:
        found = "; ".join(error.refused) or "none is installed"
        yield Finding(
            "java",
            Status.PROBLEM,
            found,
            "install Java 17 or newer (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME to one, "
            "or get it as a wheel: pip install 'qworker-redis[jre]'",
        )
        return
    yield Finding("java", Status.OK, f"Java {java.version}, found by {java.found}: {java.path}")


def _packages() -> Iterator[Finding]:
    from importlib.metadata import version

    from redis.utils import HIREDIS_AVAILABLE

    from qworker.cli.finding import Finding, Status
    from qworker.pipeline.source.session import NEEDS, package_problem

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
            "is missing: reads are 4 to 8 times slower",
            "pip install hiredis",
        )


def _server(session: Session) -> Iterator[Finding]:
    from qworker.cli.finding import Finding, Status
    from qworker.errors import QworkerError

    session.patience_s = 2.0
    try:
        session.ask("PING")
    except QworkerError as error:
        fix = "set QWORKER_URL, or look closer with qworker doctor"
        yield Finding("server", Status.PROBLEM, str(error), fix)
    else:
        yield Finding("server", Status.OK, f"{session.url} answers")


def _round_trip(session: Session, master: str, wrong: list[str]) -> Iterator[Finding]:
    from qworker.cli.finding import Finding, Status
    from qworker.cli.spark_reading import source_options
    from qworker.pipeline.source.session import open_session

    if wrong:
        yield Finding("round trip", Status.WARNING, f"not tried: {', '.join(wrong)} first")
        return
    spark, options = None, source_options(session)
    try:
        begun = time.perf_counter()
        spark = open_session(app="qworker-doctor", master=master)
        started_s = time.perf_counter() - begun
        seconds = send_and_read(session, spark, options)
    except Exception as error:  # noqa: BLE001  whatever ends it is the finding
        yield Finding(
            "round trip",
            Status.PROBLEM,
            f"{type(error).__name__}: {str(error).strip().rpartition(chr(10))[2][:500]}",
            "qworker spark sql 'select 1' with QWORKER_DEBUG=1 shows all that Spark says",
        )
        return
    finally:
        if spark is not None:
            spark.stop()
    yield Finding(
        "round trip",
        Status.OK,
        f"Spark started in {started_s:.1f} s; {_ROWS} rows were sent and read again in {seconds:.1f} s",
    )


def send_and_read(session: Session, spark: SparkSession, options: Mapping[str, str]) -> float:
    """Send rows to a queue of their own, read them again and remove it; returns how many seconds that took.

    `options` of the data source name the server. Raises `PipelineError` where other rows come back.
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
        raise PipelineError(f"{len(stored)} rows came back of {len(sent)}, or other ones")
    return time.perf_counter() - begun
