"""One Spark session for all tests of the pipeline, small and quick to start; and one Cluster.

Tests that ask for `spark` need Java; where there is none they are skipped with the reason, and fail where CI=true.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from qworker.errors import JavaMissingError, SparkMissingError
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import server_options
from qworker.pipeline.session import OF_COMMANDS, open_session
from tests.browser import chromium, new_page  # noqa: F401  fixtures
from tests.pipeline.object_store import object_store
from tests.servers import missing
from tests.topologies.servers import Cluster, cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Java looks for each class in one jar of the classpath after another, of which Spark has hundreds in no order: these,
#: put before the others, have most of the classes that are loaded.
_FIRST_JARS: Final = (
    *("scala-library-", "spark-catalyst_", "spark-sql_", "spark-core_", "spark-sql-api_"),
    *("spark-common-utils", "spark-unsafe_", "hadoop-client-api-"),
)


def jars_first() -> str:
    """The classpath that Spark's own follows."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return ""
    jars = Path(spec.origin).with_name("jars")
    return os.pathsep.join(str(jar) for name in _FIRST_JARS for jar in jars.glob(f"{name}*.jar"))


#: The classes of Spark are as they were built: Java need not check each that it loads.
UNVERIFIED: Final = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
#: Tests are small: plans are interpreted rather than compiled, compilation is quick rather than good, no adaptive
#: planning, as many partitions as cores. With Spark's own settings run `make spark-demo` and a killed archiver.
#: A compiler that is quick has 48 MB for its code unless told otherwise; the planner's fill them, and Java would throw
#: code away and compile it again.
FAST = {
    **OF_COMMANDS,
    "spark.default.parallelism": "2",
    "spark.driver.extraClassPath": jars_first(),
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -XX:MetaspaceSize=256m -Xms1g "
        f"{UNVERIFIED}"
    ),
    "spark.driver.memory": "1g",
    "spark.python.daemon.module": "tests.pipeline.warm_daemon",
    "spark.sql.warehouse.dir": "file:///tmp/qworker-tests-warehouse",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}


_HERE: Final = Path(__file__).parent
#: Servers that tests without Spark use as well.
_SHARED: Final = {"nodes", "objects"}


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that ask for a session or a Cluster; `--dist loadgroup` gives those of a group to one process.

    One session: a second would compile all of Spark again, and save nothing on two cores.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
            if item.get_closest_marker("timeout") is None:
                # A time limit inside of a call breaks the session, and every later test fails with it.
                item.add_marker(pytest.mark.timeout(300))
            item.add_marker("slow")
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif _SHARED & {*getattr(item, "fixturenames", ())} and item.path.is_relative_to(_HERE):
            # By the process that has the tests with both: one Cluster is enough, and one object store.
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker("slow")


@pytest.fixture(scope="session")
def nodes() -> Iterator[Cluster]:
    """Three masters with a replica each."""
    with cluster() as nodes:
        yield nodes


@pytest.fixture(scope="session")
def spark(store_url: str) -> Iterator[SparkSession]:
    """A session of two threads (`local[2,3]`: a task is tried three times, as on a cluster)."""
    server_options(store_url, "any")  # Its processes learn a password as they start.
    try:
        session = open_session(app="qworker-tests", master="local[2,3]", settings=FAST)
    except (JavaMissingError, SparkMissingError) as error:
        missing(str(error))
    yield session
    session.stop()


#: Where worlds are archived: one place, and all in the long form; how a place is read has tests of its own.
_PLACES: Final = (
    ["memory", "directory", "object store"] if os.environ.get("QWORKER_WORLDS") else ["directory"]
)


@pytest.fixture(params=_PLACES)
def lakes(request, tmp_path, monkeypatch) -> Iterator[Callable[[int], Lake | None]]:
    """Makes places for worlds."""
    if request.param != "object store":
        in_memory = request.param == "memory"
        yield lambda number: None if in_memory else Lake(tmp_path / f"lake{number}")
        return
    with object_store() as objects:
        for name, value in objects.environment().items():
            monkeypatch.setenv(name, value)
        yield lambda number: Lake(objects.url(f"lake{number}"))
