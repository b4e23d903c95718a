"""`qworker web`: refuses to be open to the network, and ends when it is asked to."""

from __future__ import annotations

import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import QWORKER, Ran, Shop, clean_environment


@pytest.mark.bad_input("dashboard: addresses, functions and ports that cannot be used")
@pytest.mark.needs("uvicorn")
def test_bad_options_are_refused_before_anything_listens(run: Callable[..., Ran]) -> None:
    """Above all an address that others reach, without a function that says who they are."""
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.test"):
        ran = run("web", "--host", host)
        assert ran.code == 2
        assert "can be reached from other hosts, and has no users and rights" in ran.err
        assert "--authorize MODULE:FUNCTION" in ran.err
    for arguments, said in (
        (("--authorize", "shop"), "is not a function"),
        (("--authorize", "no_such_module:authorize"), "cannot import no_such_module:authorize"),
        (("--authorize", "qworker.web.access:VIEW"), "is not a function"),
        (("--port", "70000"), "--port"),
        (("--host", "a b"), "is not a host"),
    ):
        ran = run("web", *arguments)
        assert (ran.code, said in ran.err) == (2, True), ran.err


def test_without_the_extra_one_line_names_it(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ran = run("web")
    assert ran.code == 2
    assert ran.err.splitlines() == [
        "error: web: needs starlette, which is not installed; pip install 'qworker-redis[web]'"
    ]


@pytest.mark.slow
@pytest.mark.needs("uvicorn", "starlette")
def test_the_process_serves_a_page_and_ends_when_asked(
    shop: Shop, run: Callable[..., Ran], tmp_path: Path
) -> None:
    """With a page open whose stream would never end; a port that is taken is an error."""
    shop.send("emails")
    command = [QWORKER, "web", "--namespace", shop.namespace, "--port"]
    environment = clean_environment(QWORKER_URL=shop.url)
    with subprocess.Popen(
        [*command, "0"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            said = next(line for line in process.stderr if "/enter?token=" in line)
            (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)", said)
            base = f"http://127.0.0.1:{port}"
            with pytest.raises(urllib.error.HTTPError, match="401") as refused:
                urllib.request.urlopen(f"{base}/")
            refused.value.close()
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            page = opener.open(said.split()[-1]).read().decode()
            assert "emails" in page
            stream = opener.open(
                urllib.request.Request(f"{base}/", headers={"accept": "text/event-stream"})
            )
            assert stream.readline().startswith(b"data: ")
            taken = run("web", "--port", port)
            assert (taken.code, "cannot listen on 127.0.0.1" in taken.err) == (2, True)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()
        stream.close()
