"""Alerts are valid, fire when they should, name what exists, and tell the operator what to run."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from qworker.consumer.options import RunOptions
from qworker.daemon.options import DaemonOptions
from tests.deploy import queries
from tests.deploy.checkers import DEPLOY, run
from tests.deploy.surface import worker_families
from tests.tables import each

PROMETHEUS = DEPLOY / "prometheus"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]


@cache
def situations() -> list[dict[str, Any]]:
    """Read the groups of alerts_test.yaml; it takes a third of a second."""
    return yaml.safe_load((PROMETHEUS / "alerts_test.yaml").read_text())["tests"]


def test_rules_are_valid() -> None:
    """promtool parses every expression and template."""
    done = run("promtool", "check", "rules", PROMETHEUS / "alerts.yaml")
    assert done.returncode == 0, done.stderr


def in_two_files(folder: Path) -> list[Path]:
    """Write the situations of alerts_test.yaml; those of hours are evaluated every five minutes, not one."""
    files = []
    for interval, of_hours in (("1m", False), ("5m", True)):
        tests = [
            test
            for test in situations()
            if of_hours
            == any(
                "h" in asked["eval_time"]
                for asked in [*test["promql_expr_test"], *test.get("alert_rule_test", [])]
            )
        ]
        assert tests
        files.append(folder / f"{interval}.yaml")
        rules = [str(PROMETHEUS / "alerts.yaml")]
        document = {"rule_files": rules, "evaluation_interval": interval, "tests": tests}
        files[-1].write_text(json.dumps(document))
    return files


@pytest.mark.slow
@pytest.mark.parametrize(
    "as_written",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.nightly("test_alerts_fire_when_they_should_and_only_then")
        ),
    ],
)
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path, as_written: bool) -> None:
    """The situations of alerts_test.yaml come out as written there."""
    files = [PROMETHEUS / "alerts_test.yaml"] if as_written else in_two_files(tmp_path)
    done = run("promtool", "test", "rules", *files, cwd=PROMETHEUS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") == len(files)


@each("rule", RULES)
def test_alert_has_a_situation_in_which_it_fires(rule: dict[str, Any]) -> None:
    """alerts_test.yaml expects the alert somewhere."""
    tests = situations()
    asked = [test for group in tests for test in group["promql_expr_test"]]
    firing = [test for test in asked if 'alertstate="firing"' in test["expr"]]
    fired = {sample["labels"] for test in firing for sample in test["exp_samples"]}
    fired |= {
        f'alertname="{test["alertname"]}"'
        for group in tests
        for test in group.get("alert_rule_test", [])
        if test["exp_alerts"]
    }
    assert any(f'alertname="{rule["alert"]}"' in labels for labels in fired)


@each("rule", RULES)
def test_alert_names_what_is_exported(rule: dict[str, Any]) -> None:
    """Metrics and labels exist, and figures kept in Redis are not counted once per reaper."""
    assert queries.strangers(rule["expr"]) == []
    assert queries.unknown_labels(rule["expr"]) == []
    assert queries.summed_truths(rule["expr"]) == []


def test_situations_are_made_of_what_is_exported() -> None:
    """alerts_test.yaml feeds series that the code could export: names, labels and their values."""
    groups = situations()
    fed = [series["series"] for group in groups for series in group["input_series"]]
    assert len(fed) > 50
    assert [name for series in fed for name in queries.strangers(series)] == []
    assert [name for series in fed for name in queries.unknown_labels(series)] == []


def test_task_that_fails_once_a_day_is_seen() -> None:
    """Outcomes are counted from 0, before the task has run: `rate` sees no step from no series to 1."""
    (handled,) = [family for family in worker_families() if family.name == "qworker_handled"]
    counted = {
        (sample.labels["task"], sample.labels["outcome"]): sample.value
        for sample in handled.samples
    }
    assert counted["send", "nacked"] == counted["load", "buried"] == 0


@each("rule", RULES)
def test_alert_names_the_command_to_run(rule: dict[str, Any]) -> None:
    """It has a severity, a summary in one line and a command in its description."""
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert "\n" not in rule["annotations"]["summary"]
    assert re.search(r"`qworker [a-z]+", rule["annotations"]["description"])


def test_scrape_example_is_valid() -> None:
    """promtool accepts prometheus.yml and finds the rules beside it."""
    done = run("promtool", "check", "config", PROMETHEUS / "prometheus.yml")
    assert done.returncode == 0, done.stderr


def test_scrape_example_asks_the_default_ports() -> None:
    """One target per role, at the port that it takes by default."""
    (job,) = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    ports = (RunOptions().metrics_port, DaemonOptions().metrics_port)
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{port}" for port in ports]}]


@pytest.mark.parametrize("path", ["prometheus/prometheus.yml", "docker/prometheus.yml"])
def test_job_is_named_as_the_alert_expects(path: str) -> None:
    """QworkerTargetDown looks for jobs that begin with qworker."""
    jobs = yaml.safe_load((DEPLOY / path).read_text())["scrape_configs"]
    assert [job for job in jobs if not job["job_name"].startswith("qworker")] == []
