"""What a hosted repository reads: workflows, templates and hooks are valid, pinned, and agree with pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.checkers import ROOT, check_schema, run
from tests.programs import program
from tests.tables import each

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
HOOKS: list[dict[str, Any]] = [
    hook
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]
]


def jobs() -> dict[str, Any]:
    """Read the jobs of the workflow that tests."""
    return yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())["jobs"]


@pytest.mark.slow
@each(
    "schema, files",
    [
        ("vendor.github-workflows", WORKFLOWS),
        (
            "vendor.github-issue-forms",
            [GITHUB / "ISSUE_TEMPLATE" / name for name in ("bug.yml", "change.yml")],
        ),
        ("vendor.github-issue-config", [GITHUB / "ISSUE_TEMPLATE/config.yml"]),
    ],
)
def test_a_file_for_the_host_has_the_form_that_the_host_asks_for(
    schema: str, files: list[Path]
) -> None:
    done = check_schema(schema, *files)
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_the_schema_refuses_a_workflow_with_a_wrong_key(tmp_path: Path) -> None:
    wrong = tmp_path / "ci.yml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("runs-on:", "run-on:"))
    done = check_schema("vendor.github-workflows", wrong)
    assert done.exit_code == 1
    assert "run-on" in done.output


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_to_a_commit_and_the_version_is_said(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text())
    assert used
    for line in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", line), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_and_ends(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert 0 < job["timeout-minutes"] <= 60


def test_every_python_that_the_package_names_is_tested_on_linux_and_macos() -> None:
    prefix = "Programming Language :: Python :: "
    named = [
        line.removeprefix(prefix)
        for line in PROJECT["project"]["classifiers"]
        if line.startswith(prefix)
    ]
    matrix = jobs()["quick"]["strategy"]["matrix"]
    assert matrix["python"] == named
    assert PROJECT["project"]["requires-python"] == f">={named[0]}"
    assert jobs()["all"]["strategy"]["matrix"]["python"] == [named[0], named[-1]]
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos"}


def test_both_servers_are_required_wherever_tests_run() -> None:
    """`tests.engines` fails where CI=true and one is missing; `make test` calls it first."""
    assert "$(BIN)/python -m tests.engines" in (ROOT / "Makefile").read_text()
    make = "make ${{ github.event_name == 'schedule' && 'test-all' || 'test' }} PYTHON=python"
    assert make in [step.get("run") for step in jobs()["all"]["steps"]]
    [engines] = [
        step for step in jobs()["quick"]["steps"] if step.get("run") == "python -m tests.engines"
    ]
    assert "env" not in engines


def test_the_links_of_the_package_lead_to_one_repository() -> None:
    urls = PROJECT["project"]["urls"]
    assert set(urls) == {"Documentation", "Source", "Issues", "Changelog"}
    for url in urls.values():
        assert url.startswith(urls["Source"])
    for name in ("Documentation", "Changelog"):
        path = urls[name].removeprefix(urls["Source"]).split("/main/")[1]
        assert (ROOT / path).exists()


@pytest.mark.slow
def test_the_readme_of_an_index_links_to_files_of_the_repository() -> None:
    """A page there is alone: each link of README.md is absolute, and leads to a file that is here."""
    readme = run("hatchling", "metadata", "readme", cwd=ROOT).stdout
    targets = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", readme)
    source = PROJECT["project"]["urls"]["Source"]
    images = source.replace("github.com", "raw.githubusercontent.com")
    found = 0
    for target in (link or image for link, image in targets):
        assert re.match("https://|#", target), target
        for prefix in (f"{source}/blob/main/", f"{images}/main/"):
            if target.startswith(prefix):
                assert (ROOT / target.removeprefix(prefix).partition("#")[0]).exists(), target
                found += 1
    assert found > 20


@pytest.mark.slow
def test_the_configuration_of_pre_commit_is_valid() -> None:
    done = run("pre-commit", "validate-config", ".pre-commit-config.yaml", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_runs_a_program_that_the_environment_has(hook: dict[str, Any]) -> None:
    first = hook["entry"].split()[0]
    assert first.startswith(".venv/bin/")
    assert program(first.removeprefix(".venv/bin/"))


@pytest.mark.slow
def test_words_are_spelt_as_dictionaries_do() -> None:
    """The product and its pages; tests hold words that are wrong on purpose."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.md", "*.py", "*.lua", "*.toml", "*.yml", "*.yaml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a checkout of git")
    files = [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    done = run("codespell", *files, cwd=ROOT)
    assert done.returncode == 0, done.stdout
