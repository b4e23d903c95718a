"""The board is in order: every expression is valid, names what is exported, and finds data."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import queries
from tests.deploy.checkers import DEPLOY, run
from tests.deploy.surface import METRICS
from tests.tables import each

BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "qworker.json").read_text())
PANELS: list[dict[str, Any]] = BOARD["panels"]
CHARTS = [panel for panel in PANELS if panel["type"] != "row"]
each_chart = each("panel", CHARTS)


def filled(query: str) -> str:
    """Put in what Grafana would: an interval, and "all" for the variables."""
    for variable, value in {"$__rate_interval": "5m", "$queue": ".*", "$task": ".*"}.items():
        query = query.replace(variable, value)
    assert "$" not in query
    return query


def expressions(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def test_rows_are_those_of_an_operators_day() -> None:
    """From "is something wrong" down to where."""
    rows = [panel["title"] for panel in PANELS if panel["type"] == "row"]
    assert rows == ["Overview", "Queues", "Tasks", "Workers", "Reaper and server", "Journal"]


def test_panels_have_their_own_id_and_place() -> None:
    """No two share an id or overlap, and none leaves the 24 columns."""
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        columns = range(at["x"], at["x"] + at["w"])
        cells = set(itertools.product(columns, range(at["y"], at["y"] + at["h"])))
        assert not taken & cells, panel["title"]
        taken |= cells


@each_chart
def test_panel_explains_itself(panel: dict[str, Any]) -> None:
    """It has a title, a description and a unit, and asks the chosen data source."""
    assert panel["title"]
    assert panel["description"].endswith((".", "`"))
    asked = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
    assert {source["uid"] for source in asked} == {"${datasource}"}
    if panel["type"] in ("stat", "timeseries", "table"):
        assert panel["fieldConfig"]["defaults"]["unit"]
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references)


@each_chart
def test_panel_names_what_is_exported(panel: dict[str, Any]) -> None:
    """Metrics and labels exist, and figures kept in Redis are not counted once per reaper."""
    for expression in map(filled, expressions(panel)):
        assert queries.strangers(expression) == []
        assert queries.unknown_labels(expression) == []
        assert queries.summed_truths(expression) == []


def test_every_metric_is_on_the_board() -> None:
    """What is worth exporting is worth a look."""
    text = json.dumps(PANELS)
    assert [name for name in METRICS if name not in text] == []


def test_variables_offer_existing_values() -> None:
    """The data source, the queues, and the tasks of the chosen queues."""
    variables = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "queue", "task"]
    for name in ("queue", "task"):
        assert queries.strangers(variables[name]["definition"]) == []
        assert variables[name]["definition"].endswith(f", {name})")
        assert variables[name]["query"]["query"] == variables[name]["definition"]


def test_expressions_are_valid(tmp_path: Path) -> None:
    """Each parses: wrapped as a recording rule, since promtool checks nothing smaller."""
    every = [filled(expression) for panel in CHARTS for expression in expressions(panel)]
    every += [annotation["expr"] for annotation in BOARD["annotations"]["list"]]
    rules = [{"record": f"board:{n}", "expr": expression} for n, expression in enumerate(every)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    done = run("promtool", "check", "rules", path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_expressions_find_data(tmp_path: Path) -> None:
    """Each gives a number where every metric has data."""
    every = [filled(expression) for panel in CHARTS for expression in expressions(panel)]
    code, text = queries.finds_data(every, tmp_path)
    assert code == 0, text


@pytest.mark.parametrize(
    "query",
    [
        "max by (queue) (qworker_messages_waiting)",
        "qworker_running_handlers + on (queue) max by (queue) (qworker_messages_ready)",
        "histogram_quantile(0.5, sum by (task) (rate(qworker_wait_seconds_bucket[5m])))",
    ],
    ids=["no such metric", "labels do not match", "no le"],
)
@pytest.mark.slow
def test_an_expression_without_data_is_noticed(query: str, tmp_path: Path) -> None:
    """The check above is able to fail."""
    code, text = queries.finds_data([query], tmp_path)
    assert code != 0
    assert "FAILED" in text
