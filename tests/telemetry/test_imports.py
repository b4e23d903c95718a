"""Logs are configured before structlog is imported: processes that log nothing do without it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

CONFIGURED = "import logging, sys; from qworker.telemetry.logs import configure_logs; configure_logs('json', 'info')"


def lines_of(*statements: str) -> list[Any]:
    """The lines that a fresh process logs, as JSON, after `CONFIGURED`."""
    code = "\n".join((CONFIGURED, "assert 'structlog' not in sys.modules", *statements))
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == ""
    return [json.loads(line) for line in ran.stderr.splitlines()]


@pytest.mark.slow
def test_structlog_is_configured_when_it_is_imported() -> None:
    """An app that imports it and logs at once writes lines like all others."""
    (line,) = lines_of("import structlog", "structlog.get_logger().info('seen', n=1)")

    assert (line["event"], line["level"], line["n"]) == ("seen", "info", 1)


@pytest.mark.slow
def test_a_record_of_logging_is_a_line_like_others_before_any_of_structlog() -> None:
    """The first record has structlog imported; levels apply to it."""
    lines = lines_of(
        "logging.getLogger('shop').debug('unseen')",
        "assert 'structlog' not in sys.modules",
        "logging.getLogger('shop').warning('seen %d', 2)",
    )

    assert [(line["event"], line["level"]) for line in lines] == [("seen 2", "warning")]


@pytest.mark.slow
def test_our_loggers_import_structlog_with_their_first_line() -> None:
    """Those of modules that every child imports."""
    lines = lines_of(
        "from qworker.telemetry.guarded import guarded",
        "from qworker.telemetry.logger import logger",
        "plain, safe = logger('a'), guarded('b')",
        "assert 'structlog' not in sys.modules",
        "plain.info('seen', n=1)",
        "safe.warning('guarded', n=2)",
    )

    assert [(line["event"], line["n"]) for line in lines] == [("seen", 1), ("guarded", 2)]


@pytest.mark.slow
def test_the_apps_own_configuration_stays() -> None:
    """It is made after ours, whether qworker has logged before or not."""
    lines = lines_of(
        "import structlog",
        "own = lambda logger, method, event: '{\"own\": \"' + event['event'] + '\"}'",
        "structlog.configure(processors=[own], logger_factory=structlog.WriteLoggerFactory(sys.stderr))",
        "from qworker.telemetry.logger import logger",
        "logger('a').info('seen')",
    )

    assert lines == [{"own": "seen"}]


@pytest.mark.slow
@pytest.mark.nightly("test_the_apps_own_configuration_stays")
def test_of_two_configurations_before_the_import_the_later_one_counts() -> None:
    """As if structlog had been imported before them."""
    lines = lines_of(
        "configure_logs('json', 'error')",
        "import structlog",
        "structlog.get_logger().info('unseen')",
        "structlog.get_logger().error('seen')",
    )

    assert [line["event"] for line in lines] == ["seen"]


@pytest.mark.slow
def test_an_import_that_fails_is_tried_again() -> None:
    """A call waits for the import that succeeds."""
    lines = lines_of(
        "import sys",
        "sys.modules['structlog._base'] = None",
        "try: import structlog",
        "except ImportError: del sys.modules['structlog._base']",
        "import structlog",
        "structlog.get_logger().info('seen')",
    )

    assert [line["event"] for line in lines] == ["seen"]


def test_a_package_that_is_missing_stays_missing() -> None:
    """The finder names no module that others do not find."""
    from qworker.telemetry.imports import when_imported

    called: list[str] = []
    finders = sys.meta_path[:]
    try:
        when_imported("no_such_package_of_anyone", lambda: called.append("missing"))
        with pytest.raises(ModuleNotFoundError):
            __import__("no_such_package_of_anyone")
        when_imported("json", lambda: called.append("json"))
    finally:
        sys.meta_path[:] = finders
    assert called == ["json"]


@pytest.mark.slow
def test_our_processes_log_without_rich_and_apps_may_import_it() -> None:
    """It takes four fifths of the time of the first line; another thread that imports it meanwhile is not disturbed."""
    lines = lines_of(
        "logging.getLogger('shop').warning('seen')",
        "assert 'structlog.dev' in sys.modules and 'rich' not in sys.modules",
        "import rich.console",
    )
    assert [line["event"] for line in lines] == ["seen"]


@pytest.mark.slow
def test_an_app_may_have_tracebacks_of_rich_after_our_first_line() -> None:
    """It names them in a handler, when structlog is there already: the first traceback imports rich."""
    lines = lines_of(
        "logging.getLogger('shop').warning('seen')",
        "import io, structlog",
        "from structlog.dev import ConsoleRenderer, RichTracebackFormatter, rich_traceback",
        "assert 'rich' not in sys.modules",
        "for formatter in rich_traceback, RichTracebackFormatter(width=60):",
        "    written = io.StringIO()",
        "    structlog.configure(",
        "        processors=[ConsoleRenderer(exception_formatter=formatter)],",
        "        logger_factory=structlog.PrintLoggerFactory(written),",
        "    )",
        "    try:",
        "        1 / 0",
        "    except ZeroDivisionError:",
        "        structlog.get_logger().exception('failed')",
        "    assert '╭' in written.getvalue() and 'ZeroDivisionError' in written.getvalue()",
    )
    assert [line["event"] for line in lines] == ["seen"]


@pytest.mark.slow
def test_a_package_is_left_out_in_one_thread_and_meanwhile() -> None:
    """Others import it at the same time."""
    code = """
import sys, threading
from qworker.telemetry.imports import left_out
def other():
    import colorsys
with left_out("colorsys"):
    try:
        import colorsys
    except ImportError as error:
        assert error.name == "colorsys"
    else:
        raise AssertionError
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert "colorsys" in sys.modules
    import colorsys
with left_out("graphlib"):
    pass
import graphlib
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
