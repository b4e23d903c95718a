"""The Spark sessions of the pipeline: quiet, times in UTC, with the data source registered; finds Java.

A job on few rows spends its time on launching: plans that are compiled, and a task for each partition of each stage. So
it has a session in which a query is one task, and its rows are tables of the driver (`qworker.pipeline.jobs.local`).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from qworker.errors import SparkMissingError
from qworker.pipeline.java import find_java
from qworker.pipeline.java_classes import remember_classes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FEW", "NEEDS", "OF_COMMANDS", "check_packages", "open_session", "session_of_few"]

#: Module → distribution, lowest version, first major version that is too high (None: no limit), as in the extra
#: `spark`: before pyspark 4.2 a Python source has no admission control, pandas 3 breaks pyspark 4.3.
NEEDS: Final[Mapping[str, tuple[str, tuple[int, int], int | None]]] = MappingProxyType(
    {
        "pyspark": ("pyspark", (4, 2), 5),
        "pyarrow": ("pyarrow", (18, 0), None),
        "pandas": ("pandas", (2, 2), 3),
        "deltalake": ("deltalake", (1, 6), 2),
    }
)

#: Set in the session of few rows.
FEW: Final = "spark.qworker.few"
_ZONE: Final = "spark.sql.session.timeZone"
#: One task reads one partition, without exchanges; plans are interpreted. A broadcast would be a job of its own.
_OF_FEW: Final = {
    FEW: "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.optimizer.disableHints": "true",
    "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
_INSTALL: Final = "pip install 'qworker-redis[spark]'"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_SETTINGS: Final = {
    _ZONE: "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # Files are chosen by queue and day before a query. Spark 4.2 loses such a filter in a plan that it keeps (persist),
    # and tasks fail: "dynamicpruning has not finished".
    "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
}
#: For commands, whose columns are all ours. Without it each call of a Column looks up the line that it comes from, for
#: texts of errors, and hands it to Java: a third of the work of an audit of few events.
OF_COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {"spark.python.sql.dataFrameDebugging.enabled": "false"}
)
#: For a local master: listens on loopback only, without a web server.
_LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # Spark writes a text of each plan for that server. In its usual form that is a twentieth of the work of an audit of
    # few events.
    "spark.sql.ui.explainMode": "simple",
}


def open_session(
    *,
    app: str = "qworker",
    master: str = "local[*]",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> SparkSession:
    """Return this process's session, started if there is none (4 s), with the data source `qworker` registered.

    `settings` are Spark's and override our defaults. A process that has a session, such as a notebook or one under
    spark-submit, keeps it, with the settings that can only be set at a start. Sets JAVA_HOME, and for a local master
    PYSPARK_PYTHON (Spark would start its workers with the `python3` of PATH) and SPARK_LOCAL_IP, in this process.
    Raises `SparkMissingError` and `JavaMissingError`.
    """
    check_packages()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from qworker.pipeline.datasource import QWorkerDataSource

    if SparkContext._gateway is None:
        _prepare(master)
    builder = SparkSession.builder.appName(app)
    if SparkSession.getActiveSession() is None:
        builder = builder.master(master)
        settings = {**_SETTINGS, **_local(master), **settings}
        quiet = (
            f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
        )
        settings[_JAVA_OPTIONS] = f"{quiet} {settings.get(_JAVA_OPTIONS, '')}"
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    remember_classes(SparkContext._jvm)
    session.dataSource.register(QWorkerDataSource)
    return session


def session_of_few(spark: SparkSession) -> SparkSession:
    """Return a new session of the same process for jobs on few rows, in the same time zone."""
    session = spark.newSession()
    for name, value in {**_OF_FEW, _ZONE: str(spark.conf.get(_ZONE))}.items():
        session.conf.set(name, value)
    return session


def check_packages() -> None:
    """Raise `SparkMissingError` unless the packages of `NEEDS` are installed in versions that work together."""
    for module in NEEDS:
        if problem := package_problem(module):
            raise SparkMissingError(f"{problem}; {_INSTALL}")


def package_problem(module: str) -> str | None:
    """Describe the problem with one package of `NEEDS`; None if there is none."""
    distribution, lowest, too_high = NEEDS[module]
    if importlib.util.find_spec(module) is None:
        return f"{module} is not installed"
    try:
        installed = version(distribution)
    except PackageNotFoundError:
        return None  # Installed by other means, such as spark-submit: its version shows when it is used.
    numbers = tuple(int(part) for part in installed.split(".")[:2] if part.isdigit())
    if numbers < lowest:
        return f"{module} {installed} is too old; {lowest[0]}.{lowest[1]} or newer is needed"
    if too_high is not None and numbers[0] >= too_high:
        return f"{module} {installed} is too new; it must be below {too_high}"
    return None


def _local(master: str) -> dict[str, str]:
    if not master.startswith("local"):
        return {}
    # Spark's 200 are for a cluster: each partition costs a file and a task.
    partitions = max(8, 2 * (os.cpu_count() or 1))
    return {**_LOCAL_SETTINGS, "spark.sql.shuffle.partitions": str(partitions)}


def _prepare(master: str) -> None:
    """Set the environment of Spark's start script and its workers."""
    os.environ["JAVA_HOME"] = str(find_java().home)
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
