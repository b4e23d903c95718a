"""What a scrape reads: the library's own text, in each of its formats, written faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, Info
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UntypedMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from qworker.telemetry.exposition import exposed

#: What servers and browsers ask for: the last ones as Prometheus 2 and 3 do.
ACCEPTS = (
    "",
    "text/html,*/*;q=0.8",
    "text/plain;version=1.0.0;escaping=underscores",
    "text/plain;version=1.0.0;escaping=dots",
    "application/openmetrics-text;version=0.0.1",
    "application/openmetrics-text;version=1.0.0;escaping=values",
    "application/openmetrics-text;version=2.0.0;escaping=dots",
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;q=0.5",
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.2",
)
WORDS = st.text(st.characters(codec="utf-8"), max_size=8) | st.text('\\"\n%{s}', max_size=8)
NUMBERS = st.floats().filter(lambda number: repr(number) != "-0.0") | st.integers(-10, 10**18)


class Given(Collector):
    """Collects the metrics that a test gives."""

    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Yield them."""
        yield from self._metrics


def same(registry: CollectorRegistry) -> None:
    """Compare with the library, in each format."""
    for accept in ACCEPTS:
        encode, content_type = choose_encoder(accept)
        assert exposed(registry, accept) == (content_type, encode(registry)), accept


def registered(*metrics: Metric) -> CollectorRegistry:
    """Return a registry of metrics."""
    registry = CollectorRegistry()
    registry.register(Given(*metrics))
    return registry


@pytest.mark.slow
@given(st.lists(st.tuples(WORDS, WORDS, NUMBERS), max_size=5), WORDS)
def test_any_label_number_and_help_is_written_as_by_the_library(
    rows: Sequence[tuple[str, str, float]], words: str
) -> None:
    """Whatever names of queues and tasks contain."""
    counter = CounterMetricFamily("handled", words, labels=("queue", "a_task"))
    times = HistogramMetricFamily("times_seconds", words, labels=("queue", "a_task"))
    for queue, task, number in rows:
        counter.add_metric((queue, task), number)
        buckets: list[tuple[str, float]] = [("0.5", 1), ("+Inf", number)]
        times.add_metric((queue, task), buckets, sum_value=number)
    same(registered(counter, times, GaugeMetricFamily("no_labels", words, 0.1)))


def test_metrics_of_others_are_written_as_by_the_library() -> None:
    """Creation times, exemplars, times of samples, and names that one format alone has."""
    registry = CollectorRegistry()
    Counter("c", "with a time of creation", ["queue"], registry=registry).labels("q").inc(
        2, exemplar={"trace": "1"}
    )
    Histogram("h", "in\nlines", registry=registry).observe(0.3)
    Info("i", "i", registry=registry).info({"version": "1"})
    timed = GaugeMetricFamily("timed", "t", labels=["queue"])
    timed.add_metric(["q"], nan)
    timed.add_metric(["r"], inf, timestamp=12.5)
    dotted = Metric("a.name", "of UTF-8", "gauge")
    dotted.add_sample("a.name", {"a.label": "x"}, 1)
    with_unit = GaugeMetricFamily("size", "s", 3, unit="bytes")
    piled = GaugeHistogramMetricFamily("g", "g", buckets=[("+Inf", 1)], gsum_value=2)
    registry.register(Given(timed, dotted, with_unit, piled, UntypedMetricFamily("u", "u", 1)))
    same(registry)
    same(CollectorRegistry())


@pytest.mark.parametrize("accept", ["", ACCEPTS[-1]])
def test_names_and_labels_are_checked_once_a_metric(
    accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand tasks cost a few checks, which in the library take most of the time of a scrape."""
    from prometheus_client import validation
    from prometheus_client.openmetrics import exposition

    calls = 0

    def counted(name: str) -> bool:
        nonlocal calls
        calls += 1
        return bool(validation._is_valid_legacy_labelname(name))

    monkeypatch.setattr(exposition, "_is_valid_legacy_labelname", counted)
    family = CounterMetricFamily("handled", "words", labels=("queue", "task"))
    for number in range(1000):
        family.add_metric(("mail", f"task{number}"), number)
    _, text = exposed(registered(family), accept)
    assert text.count(b"handled_total{") == 1000
    assert calls < 10
