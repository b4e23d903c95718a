"""Which server a worker uses: the one that is given to it, else that of its app; and what it logs."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from qworker import QWorker
from qworker.store.embedded.store import Store
from tests.consumer.driving import until
from tests.consumer.forkserver import Order, start_module
from tests.consumer.rows import STARTS
from tests.consumer.workers import Lab, Worker
from tests.timing import DEADLINE_S

pytestmark = pytest.mark.slow

HANDLE = """
@app.task
def handle(n):
    note("handled", n)
"""
#: A server that does not answer, and its password.
# Of another length than the URLs of servers here: bytecode of a file is taken as fresh by its second and its size.
ELSEWHERE = "redis://:hunter2@localhost:11/0"
SHOWN = "redis://:***@localhost:11/0"
#: The operator names none.
UNNAMED: dict[str, str | None] = {"QWORKER_URL": None, "REDIS_URL": None}


def app_with_url(lab: Lab, url: str, source: str = HANDLE) -> None:
    """Write an app that gives itself a URL."""
    lab.app(f"app = QWorker({lab.namespace!r}, url={url!r})\n" + source)


def write_file(lab: Lab, name: str, url: str) -> Path:
    """Write a configuration file that names a server, and that the worker trusts."""
    file = lab.directory / name
    file.write_text(f'url = "{url}"\n')
    file.chmod(0o600)
    return file


def end(lab: Lab, *flags: str, environ: dict[str, str | None]) -> tuple[int, str]:
    """Run a worker that ends; returns its exit code and all that it wrote."""
    worker = lab.start(*flags, environ=environ)
    return worker.wait(), worker.log.read_text()


def handles(lab: Lab, worker: Worker, n: int = 1) -> None:
    """Send a message to the lab's server, and wait until the worker has handled it and told its start."""
    lab.send("handle", n)
    until(lambda: [n] in lab.noted("handled") and worker.events("worker_started"))


# -- nothing is named --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "redis_url",
    [
        pytest.param(None, marks=pytest.mark.nightly("test_a_worker_uses_the_url_of_its_app")),
        ELSEWHERE,
    ],
)
def test_a_worker_uses_the_url_of_its_app(lab: Lab, redis_url: str | None) -> None:
    """Also beside a REDIS_URL, which the app itself does not look at either."""
    app_with_url(lab, lab.url)
    worker = lab.start(environ={**UNNAMED, "REDIS_URL": redis_url})
    handles(lab, worker)
    assert worker.stop() == 0
    (started,) = worker.events("worker_started")
    assert started["server_from"] == "app"
    assert not worker.events("app_url_not_used")
    assert "hunter2" not in worker.log.read_text()


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(
            "jobs:app", marks=pytest.mark.nightly("test_an_app_is_asked_however_it_is_named")
        ),
        "./jobs.py",
    ],
)
def test_an_app_is_asked_however_it_is_named(lab: Lab, spec: str) -> None:
    """By its attribute, or by a path."""
    app_with_url(lab, lab.url)
    lab.send("handle", 1)
    worker = lab.start("--burst", spec=spec, environ=UNNAMED)
    assert worker.wait() == 0
    assert lab.noted("handled") == [[1]]


@pytest.mark.cold
@pytest.mark.nightly("test_a_password_that_is_named_is_not_in_the_warning")
def test_a_password_of_the_app_is_never_printed(lab: Lab) -> None:
    """The first line and those of a server that does not answer show it as ***; no command line holds it."""
    app_with_url(lab, ELSEWHERE)
    worker = lab.start(environ=UNNAMED)
    until(lambda: worker.events("worker_started"))
    words = [" ".join(psutil.Process(pid).cmdline()) for pid in worker.pids()]
    worker.stop()
    (started,) = worker.events("worker_started")
    assert started["server"] == SHOWN
    assert "hunter2" not in worker.log.read_text() + "".join(words)


def test_an_app_may_name_the_embedded_store(lab: Lab, tmp_path: Path) -> None:
    """It is started for the worker, and one line says where it is."""
    store = Store(tmp_path / "store")
    app_with_url(lab, f"embedded:{store.directory}")
    try:
        sender = QWorker(lab.namespace, url=f"embedded:{store.directory}")
        sender.queue("default").send({"task": "handle", "args": [1]})
        sender.close()
        code, log = end(lab, "--burst", environ=UNNAMED)
    finally:
        store.stop()
    assert code == 0
    assert lab.noted("handled") == [[1]]
    assert f"using the embedded store in {store.directory}\n" in log
    assert "app_url_not_used" not in log


def test_on_a_terminal_no_embedded_store_takes_the_place_of_the_apps_server(
    lab: Lab, tmp_path: Path
) -> None:
    """The store is for apps that name no server."""
    app_with_url(lab, lab.url)
    lab.send("handle", 1)
    environ = {**lab.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    del environ["QWORKER_URL"]
    ours, theirs = pty.openpty()
    words = ["run", "jobs", "--burst", "--procs", "1", "--metrics-port", "0"]
    environ["QWORKER_LOG_LEVEL"] = "error"
    order = Order("qworker", words, str(lab.directory), environ, nursery=True)
    try:
        with open(theirs, "wb", closefd=False) as terminal, open(os.devnull, "wb") as nowhere:
            process = start_module(order, nowhere, terminal)
        assert process.wait(DEADLINE_S) == 0
    finally:
        os.close(theirs)
        os.close(ours)
    assert lab.noted("handled") == [[1]]
    assert not (tmp_path / "state").exists()


def test_without_any_url_there_is_an_error(lab: Lab) -> None:
    """Exit code 2, and what to set."""
    lab.app(HANDLE)
    code, log = end(lab, environ=UNNAMED)
    assert code == 2
    assert "error: url: is not set; set QWORKER_URL" in log


def test_redis_url_counts_for_an_app_without_a_url(lab: Lab) -> None:
    """As it does for the app itself."""
    lab.app(HANDLE)
    lab.send("handle", 1)
    worker = lab.start("--burst", environ={**UNNAMED, "REDIS_URL": lab.url})
    assert worker.wait() == 0
    assert lab.noted("handled") == [[1]]
    assert "QWORKER_URL is not set: using REDIS_URL\n" in worker.log.read_text()
    assert worker.events("worker_started")[0]["server_from"] == "REDIS_URL"


def test_an_app_and_its_worker_take_the_server_of_the_same_file(lab: Lab) -> None:
    """A process of the app sends, and a worker handles, although REDIS_URL names another server."""
    lab.app(HANDLE)
    write_file(lab, "qworker.toml", lab.url)
    environ = {**lab.environ, "REDIS_URL": ELSEWHERE}
    del environ["QWORKER_URL"]
    send = "import jobs; jobs.handle.send(1)"
    subprocess.run([sys.executable, "-c", send], cwd=lab.directory, env=environ, check=True)
    worker = lab.start("--burst", environ={**UNNAMED, "REDIS_URL": ELSEWHERE})
    assert worker.wait() == 0
    assert lab.noted("handled") == [[1]]
    assert not worker.events("app_url_not_used")


def test_an_app_of_the_file_is_told_of_a_worker_elsewhere(lab: Lab) -> None:
    """`--url` counts for the worker alone: processes of the app continue to send where the file says."""
    lab.app(HANDLE)
    write_file(lab, "qworker.toml", ELSEWHERE)
    worker = lab.start("--url", lab.url, environ=UNNAMED)
    handles(lab, worker)
    until(lambda: worker.events("app_url_not_used"))
    assert worker.stop() == 0
    assert worker.events("app_url_not_used")[0]["app_url"] == SHOWN
    assert "hunter2" not in worker.log.read_text()


def test_what_a_worker_starts_takes_the_file_that_it_was_told(lab: Lab) -> None:
    """Another app of the process, whatever its directory."""
    lab.app(
        HANDLE
        + """
other = QWorker("other")

@app.task
def look():
    os.chdir("/")
    note("sees", other.url)
"""
    )
    write_file(lab, "qworker.toml", ELSEWHERE)
    write_file(lab, "mine.toml", lab.url)
    lab.send("look")
    worker = lab.start("--burst", "--config", "mine.toml", spec="jobs:app", environ=UNNAMED)
    assert worker.wait() == 0, worker.log.read_text()
    assert lab.noted("sees") == [[lab.url]]


# -- apps that cannot be asked -----------------------------------------------------------------


@pytest.mark.cold
@pytest.mark.nightly("consumer/test_starts.py::test_an_import_error_is_shown_whole")
def test_an_import_error_is_shown_whole(lab: Lab) -> None:
    """As a child shows it: the traceback of the user's module, the error last, exit code 2; no child is started."""
    lab.app("raise RuntimeError('the settings are missing')\n")
    code, log = end(lab, environ=UNNAMED)
    assert code == 2
    lines = log.splitlines()
    assert lines[0].endswith("Traceback (most recent call last):")
    assert "jobs.py" in lines[1]
    assert lines[-1] == "error: 'jobs' cannot be imported: RuntimeError: the settings are missing"
    assert "app_url.py" not in log
    assert "child_started" not in log


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("del app\n", "module 'jobs' holds no QWorker"),
        pytest.param(
            "print('last words'); os._exit(5)\n",
            "a process exited with code 5 while it imported",
            marks=pytest.mark.nightly("test_what_is_wrong_with_an_app_is_one_line"),
        ),
        ("os.closerange(3, 99); os._exit(6)\n", "a process exited with code 6 while it imported"),
        (
            "app = QWorker(url='redis://:hunter2@localhost/x')\n",
            "the app 'jobs' has an invalid url: has a wrong database",
        ),
        ("app = QWorker(url='redis://h\\udcff')\n", "invalid url: has bytes that are not UTF-8"),
        ("app = QWorker(url=5)\n", "invalid url: is int, not str"),
    ],
    ids=["no app", "ends", "closes", "wrong url", "surrogate", "number"],
)
def test_what_is_wrong_with_an_app_is_one_line(lab: Lab, source: str, problem: str) -> None:
    """Exit code 2, no traceback, no password."""
    lab.app(source)
    code, log = end(lab, environ=UNNAMED)
    assert code == 2
    assert problem in log.splitlines()[-1]
    assert "Traceback" not in log
    assert "hunter2" not in log


@pytest.mark.parametrize("start", STARTS)
def test_what_an_app_starts_at_import_does_not_outlive_the_question(lab: Lab, start: str) -> None:
    """Neither a thread that never ends, nor a process, nor one that holds the pipe of the answer open."""
    app_with_url(
        lab,
        lab.url,
        HANDLE
        + """
import subprocess
threading.Thread(target=time.sleep, args=(600,)).start()
note("started", subprocess.Popen(["sleep", "600"]).pid)
if (forked := os.fork()) == 0:
    time.sleep(600)
note("started", forked)
""",
    )
    lab.send("handle", 1)
    code, log = end(lab, "--burst", environ=UNNAMED)
    assert (code, lab.noted("handled")) == (0, [[1]]), log
    started = [pid for (pid,) in lab.noted("started")]
    assert len(started) == 4
    until(lambda: not any(psutil.pid_exists(pid) for pid in started))


# -- the operator names another ----------------------------------------------------------------


@pytest.mark.parametrize(
    "by",
    [
        pytest.param(
            "QWORKER_URL",
            marks=pytest.mark.nightly("test_a_server_that_is_named_counts_over_the_apps"),
        ),
        pytest.param(
            "--url", marks=pytest.mark.nightly("test_a_server_that_is_named_counts_over_the_apps")
        ),
        "file",
    ],
)
def test_a_server_that_is_named_counts_over_the_apps(lab: Lab, by: str) -> None:
    """The worker continues with it, and one line says so, with both URLs."""
    app_with_url(lab, ELSEWHERE)
    environ, flags, source = UNNAMED, (), by
    if by == "--url":
        flags = ("--url", lab.url)
    elif by == "file":
        source = f"{write_file(lab, 'qworker.toml', lab.url)}: url"
    else:
        environ = {**UNNAMED, "QWORKER_URL": lab.url}
    worker = lab.start("--procs", "2", *flags, environ=environ)
    handles(lab, worker)
    until(lambda: worker.events("app_url_not_used"))
    assert worker.stop() == 0
    (line,) = worker.events("app_url_not_used")
    assert (line["level"], line["app_url"]) == ("warning", SHOWN)
    (started,) = worker.events("worker_started")
    assert line["server"] == started["server"]
    assert started["server_from"] == source
    log = worker.log.read_text()
    assert "hunter2" not in log
    if (password := urlsplit(lab.url).password) is not None:
        assert password not in log.replace(f"--url {lab.url}", "")


def test_a_password_that_is_named_is_not_in_the_warning(lab: Lab) -> None:
    """Neither URL shows one."""
    app_with_url(lab, "redis://user:swordfish@elsewhere")
    worker = lab.start(environ={**UNNAMED, "QWORKER_URL": ELSEWHERE})
    until(lambda: worker.events("app_url_not_used"))
    worker.stop()
    (line,) = worker.events("app_url_not_used")
    assert line["server"] == SHOWN
    assert line["app_url"] == "redis://user:***@elsewhere:6379/0"
    log = worker.log.read_text()
    assert "hunter2" not in log
    assert "swordfish" not in log


def test_a_wrong_url_of_the_app_does_not_stop_a_worker_with_another(lab: Lab) -> None:
    """What is wrong with it stands in its place."""
    app_with_url(lab, "redis://:hunter2@localhost/x")
    worker = lab.start()
    handles(lab, worker)
    until(lambda: worker.events("app_url_not_used"))
    assert worker.stop() == 0
    assert worker.events("app_url_not_used")[0]["app_url"].startswith("url: has a wrong database")
    assert "hunter2" not in worker.log.read_text()


def test_the_same_server_spelled_differently_is_the_same(lab: Lab) -> None:
    """No warning."""
    end_of_url = "&db=0" if "?" in lab.url else "?db=0"
    app_with_url(lab, lab.url + end_of_url if lab.url.startswith("unix:") else lab.url)
    worker = lab.start()
    handles(lab, worker)
    assert worker.stop() == 0
    assert not worker.events("app_url_not_used")


def test_an_app_whose_url_changes_warns_again(lab: Lab) -> None:
    """A child that is started later may hold another code than the first."""
    app_with_url(lab, lab.url)
    worker = lab.start()
    handles(lab, worker)
    assert not worker.events("app_url_not_used")
    app_with_url(lab, ELSEWHERE)
    os.kill(worker.children()[0], signal.SIGKILL)
    until(lambda: worker.events("app_url_not_used"))
    handles(lab, worker, 2)
    assert worker.stop() == 0
    assert len(worker.events("app_url_not_used")) == 1


def test_an_app_without_a_url_does_not_warn(lab: Lab) -> None:
    """It goes by the environment, as the worker does."""
    lab.app(HANDLE)
    worker = lab.start()
    handles(lab, worker)
    assert worker.stop() == 0
    assert worker.events("worker_started")[0]["server_from"] == "QWORKER_URL"
    assert not worker.events("app_url_not_used")


def test_an_app_says_which_url_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the environment."""
    monkeypatch.setenv("QWORKER_URL", "redis://named")
    assert QWorker(url="redis://given").given_url == "redis://given"
    assert QWorker().given_url is None
    assert QWorker(url="").given_url is None
