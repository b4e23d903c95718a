"""PromQL of deploy/: what an expression names, and what it finds in made-up data of every metric."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml

from tests.deploy.checkers import run
from tests.deploy.surface import METRICS, Metric

__all__ = ["finds_data", "strangers", "summed_truths", "unknown_labels", "vectors"]

# What Prometheus adds by itself to every series it scrapes or evaluates.
SCRAPED = {"job", "instance"}
PART = re.compile(r"_(?:bucket|sum|count)$")


def metric(name: str) -> Metric | None:
    """Find the metric that exports the series `name`, which may be a part of a histogram."""
    if exported := METRICS.get(name):
        return None if exported.kind == "histogram" else exported
    exported = METRICS.get(PART.sub("", name))
    return exported if exported and exported.kind == "histogram" else None


def named(query: str) -> list[str]:
    return re.findall(r"\bqworker_\w+", query)


def strangers(query: str) -> list[str]:
    """List the names in `query` that nothing exports."""
    return [name for name in named(query) if metric(name) is None]


def unknown_labels(query: str) -> list[str]:
    """List `name{label}` pairs of `query` where the metric has no such label, or never that value."""
    wrong = []
    for name, inner in re.findall(r"\b(qworker_\w+)\{([^}]*)\}", query):
        exported = metric(name)
        labels = exported.labels if exported else {}
        for label, operator, value in re.findall(r'(\w+)\s*(=~?|!=|!~)\s*"([^"]*)"', inner):
            free = label in SCRAPED or label in ("queue", "task")
            if label not in SCRAPED and label not in labels:
                wrong.append(f"{name}{{{label}}}")
            elif not free and operator in ("=", "=~"):
                values = value.split("|") if operator == "=~" else [value]
                wrong += [f'{name}{{{label}="{v}"}}' for v in values if v not in labels[label]]
    return wrong


def summed_truths(query: str) -> list[str]:
    """List figures kept in Redis that `query` does not take `max by (queue…)` of.

    Every reaper exports them alike, so any other aggregation counts them once per reaper.
    """
    wrong = []
    for match in re.finditer(r"\bqworker_\w+", query):
        exported = metric(match[0])
        before = re.sub(r"\s+", " ", query[: match.start()])
        taken = re.search(
            r"max by \(queue[a-z, ]*\) \( ?(?:(?:rate|increase|delta|min_over_time)\()?$", before
        )
        if exported and exported.truth and not taken:
            wrong.append(match[0])
    return wrong


def vectors(query: str) -> list[str]:
    """List the operands of a condition: what stands between comparisons and set operators, numbers left out.

    Of an alert's expression these must have data even while it does not fire.
    """
    query = query.strip()
    if query.startswith("absent(") and closing(query, query.index("(")) == len(query) - 1:
        return vectors(query[len("absent") :])
    if query.startswith("(") and closing(query, 0) == len(query) - 1:
        return vectors(query[1:-1])
    parts = split(query)
    if len(parts) > 1:
        return [vector for part in parts for vector in vectors(part)]
    return [] if re.fullmatch(r"[\d.]+", query) else [query]


def closing(query: str, at: int) -> int:
    """Find the parenthesis that closes the one at `at`."""
    depth = 0
    for place in range(at, len(query)):
        depth += {"(": 1, ")": -1}.get(query[place], 0)
        if not depth:
            return place
    raise ValueError(query)


def split(query: str) -> list[str]:
    """Split at the comparisons and set operators that stand outside of every parenthesis."""
    operator = re.compile(
        r"\s(?:(?:and|or|unless)(?:\s+(?:on|ignoring)\s*\([^)]*\))?|==|!=|<=?|>=?)\s"
    )
    parts, begin, at = [], 0, 0
    while at < len(query):
        if query[at] == "(":
            at = closing(query, at)
        elif match := operator.match(query, at):
            parts.append(query[begin:at])
            # The blank after an operator may be the one before the next.
            begin, at = match.end(), match.end() - 2
        at += 1
    return [*parts, query[begin:]]


def series() -> Iterator[dict[str, str]]:
    """Make an hour of data for every metric and combination of its labels, from two processes."""

    def line(name: str, labels: Mapping[str, str], values: str) -> dict[str, str]:
        inner = ", ".join(f'{label}="{value}"' for label, value in labels.items())
        return {"series": f"{name}{{{inner}}}", "values": values}

    for name, exported in METRICS.items():
        for combination in itertools.product(("a", "b"), *exported.labels.values()):
            labels = dict(zip(["instance", *exported.labels], combination, strict=True))
            labels["job"] = "qworker"
            if name.endswith("_timestamp_seconds"):
                yield line(name, labels, "0+60x60")
            elif exported.kind == "gauge":
                yield line(name, labels, "1x60")
            elif exported.kind == "counter":
                yield line(name, labels, "0+60x60")
            else:
                for le, values in {"0.1": "0+30x60", "1": "0+50x60", "+Inf": "0+60x60"}.items():
                    yield line(f"{name}_bucket", {**labels, "le": le}, values)
                yield line(f"{name}_sum", labels, "0+20x60")
                yield line(f"{name}_count", labels, "0+60x60")
    for instance in ("a", "b"):
        yield line("up", {"job": "qworker", "instance": instance}, "1x60")


def finds_data(queries: Iterable[str], folder: Path) -> tuple[int, str]:
    """Evaluate each query over `series()` with promtool: exit code 0 if all find a number.

    Any number but NaN counts. This finds what parsing does not: labels that do not match on the two
    sides of an operator, an aggregation that lost `le`.
    """
    tests = [
        {
            "expr": f"count(({query}) > -Inf) > bool 0",
            "eval_time": "30m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for query in queries
    ]
    situation = {"interval": "1m", "input_series": list(series()), "promql_expr_test": tests}
    path = folder / "data_test.yaml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [situation]}))
    done = run("promtool", "test", "rules", path)
    return done.returncode, done.stdout + done.stderr
