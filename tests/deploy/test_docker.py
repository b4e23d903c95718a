"""The image and the compose file are valid, run without rights, and stop in time."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from qworker.consumer.options import RunOptions
from tests.deploy.checkers import DEPLOY, ROOT, check_schema, run
from tests.deploy.surface import FLAGS

DOCKER = DEPLOY / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def instructions() -> list[tuple[str, str]]:
    """List (instruction, rest) of the Dockerfile, continued lines joined, comments dropped."""
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    return [
        (name, rest) for name, _, rest in (line.partition(" ") for line in text.split("\n")) if name
    ]


def last(instruction: str) -> str:
    return [rest for name, rest in instructions() if name == instruction][-1]


def seconds(value: str) -> int:
    return int(value.removesuffix("s"))


@pytest.mark.slow
def test_dockerfile_has_no_findings() -> None:
    """hadolint is content."""
    done = run("hadolint", DOCKER / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")


def test_image_runs_without_rights_and_without_a_shell() -> None:
    """The user is a number that is not root, and signals reach qworker itself."""
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last("USER"))
    assert json.loads(last("ENTRYPOINT")) == ["qworker"]
    assert json.loads(last("CMD")) == ["daemon"]


def test_image_has_the_pinned_versions() -> None:
    """Dependencies come from the lock, by hash, and the package brings none of its own."""
    installs = [rest.partition(" install ")[2] for name, rest in instructions() if name == "RUN"]
    pinned, package = filter(None, installs)
    assert pinned == "--require-hashes --requirement /lock/requirements.lock"
    assert package == "--no-deps /src"
    assert "uvloop==" in (DEPLOY / "requirements.lock").read_text()


def test_build_context_holds_what_the_dockerfile_copies() -> None:
    """The ignore file lets through exactly the sources of COPY, and they exist."""
    copies = [shlex.split(rest)[:-1] for name, rest in instructions() if name == "COPY"]
    sources = {word for words in copies if not words[0].startswith("--from") for word in words}
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignore
    assert {line[1:] for line in ignore if line.startswith("!")} == sources
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.slow
def test_package_builds_from_what_the_dockerfile_copies(tmp_path: Path) -> None:
    """Nothing else of the checkout is needed, and scripts, types and templates are in the wheel."""
    ((*sources, _),) = [
        words
        for words in (shlex.split(rest) for name, rest in instructions() if name == "COPY")
        if words[-1] == "/src/"
    ]
    for source in sources:
        shutil.copy(ROOT / source, tmp_path)
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "qworker", tmp_path / "qworker", ignore=skipped)
    done = run("hatchling", "build", "-t", "wheel", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "qworker").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted - packed == set()


@contextmanager
def answering(status: int) -> Iterator[int]:
    """Serve `status` to every GET on our own port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        log_message: Callable[..., None] = lambda *_: None

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (None, False)])
@pytest.mark.slow
def test_healthcheck_follows_healthz(status: int | None, healthy: bool) -> None:
    """It succeeds on 200 and fails on 503 and on a closed port."""
    _, _, command = last("HEALTHCHECK").partition("CMD ")
    program, *args = json.loads(command)
    assert program == "python"
    with answering(status or 200) as free:
        environment = {**os.environ, "QWORKER_METRICS_PORT": str(free if status else 1)}
        done = subprocess.run(
            [sys.executable, *args], env=environment, capture_output=True, timeout=60, check=False
        )
    assert (done.returncode == 0) is healthy, done.stderr


def test_ports_are_one() -> None:
    """What the image sets is what it exposes and what Prometheus scrapes: the default of `qworker run`."""
    port = re.search(r"QWORKER_METRICS_PORT=(\d+)", last("ENV"))
    assert port
    assert port[1] == last("EXPOSE") == str(RunOptions().metrics_port)
    (job,) = yaml.safe_load((DOCKER / "prometheus.yml").read_text())["scrape_configs"]
    assert str(job["dns_sd_configs"][0]["port"]) == port[1]


@pytest.mark.slow
def test_compose_file_is_valid() -> None:
    """It fits the schema of the compose specification."""
    done = check_schema("vendor.compose-spec", DOCKER / "compose.yaml")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("service", ["daemon", "worker"])
def test_qworker_services_are_locked_down(service: str) -> None:
    """Read-only, no capabilities, no way to gain any, and commands and flags that exist."""
    have = SERVICES[service]
    assert have["read_only"] is True
    assert have["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in have["security_opt"]
    assert have["init"] is True
    command, *rest = have["command"]
    assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= FLAGS[command]


def test_consumers_may_finish_before_they_are_killed() -> None:
    """stop_grace_period leaves the grace time and a margin for what comes after it."""
    grace = next(word for word in SERVICES["worker"]["command"] if word.startswith("--grace="))
    wait = seconds(SERVICES["worker"]["stop_grace_period"])
    assert wait >= seconds(grace.removeprefix("--grace=")) + 10


def test_server_is_ours_and_cannot_be_reached_from_outside() -> None:
    """Valkey reads our file, publishes nothing, and sits on a network without a way out."""
    valkey = SERVICES["valkey"]
    assert "../redis.conf:/usr/local/etc/valkey/redis.conf:ro" in valkey["volumes"]
    assert valkey["command"][:2] == ["valkey-server", "/usr/local/etc/valkey/redis.conf"]
    assert "ports" not in valkey
    assert [COMPOSE["networks"][name]["internal"] for name in valkey["networks"]] == [True]


def test_published_ports_are_local() -> None:
    """Nothing listens on the machine's other addresses."""
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_monitoring_is_optional() -> None:
    """Prometheus and Grafana start with a profile only."""
    named = {name for name, service in SERVICES.items() if "profiles" in service}
    assert named == {"prometheus", "grafana"}


def test_mounted_files_exist() -> None:
    """A missing source would become an empty folder inside the container."""
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", [])]
    sources = [mount.partition(":")[0] for mount in mounts if mount.startswith(".")]
    assert sources
    assert [source for source in sources if not (DOCKER / source).exists()] == []


def test_inline_configs_are_yaml() -> None:
    """Grafana finds a data source and a folder of boards."""
    have = {name: yaml.safe_load(config["content"]) for name, config in COMPOSE["configs"].items()}
    assert have["grafana-datasource"]["datasources"][0]["url"] == "http://prometheus:9090"
    folder = have["grafana-dashboards"]["providers"][0]["options"]["path"]
    assert any(
        mount.endswith(f"{folder}/qworker.json:ro") for mount in SERVICES["grafana"]["volumes"]
    )


def test_prometheus_reads_its_configuration(tmp_path: Path) -> None:
    """The files as they are mounted side by side are valid."""
    shutil.copy(DOCKER / "prometheus.yml", tmp_path)
    shutil.copy(DEPLOY / "prometheus" / "alerts.yaml", tmp_path)
    done = run("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert done.returncode == 0, done.stderr


def test_app_is_the_module_that_the_worker_runs() -> None:
    """The example app stands where the compose file says, in its namespace, and its task runs."""
    _, module, *_ = SERVICES["worker"]["command"]
    loaded = runpy.run_path(str(DOCKER / "app" / f"{module}.py"))
    assert loaded["app"].namespace == SERVICES["daemon"]["environment"]["QWORKER_NAMESPACE"]
    assert list(loaded["app"].tasks) == ["greet"]
    loaded["greet"]("Ada")
