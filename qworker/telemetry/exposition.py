"""The text of a scrape.

The library writes it, but for the samples themselves: it checks and escapes each name and label again, which takes a
worker of two thousand tasks a second. Here a name and its labels are checked once per metric.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric, Sample
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

__all__ = ["exposed"]

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
#: Samples that one of the two formats puts elsewhere.
_MOVED: Final = ("_created", "_gsum", "_gcount")


def exposed(registry: CollectorRegistry, accept: str) -> tuple[str, bytes]:
    """Return the content type that suits an `Accept` header, and the metrics of the registry in that format."""
    encode, content_type = choose_encoder(accept)
    if content_type.endswith(("escaping=dots", "escaping=values")):  # They change plain names too.
        return content_type, encode(registry)
    end = encode(_Only())
    escaped, numbers = _Escaped(), _Numbers()
    parts = []
    for metric in registry.collect():
        text = _samples(metric, escaped, numbers)
        if text is None:
            parts.append(_encoded(encode, metric, end))
            continue
        head = Metric(metric.name, metric.documentation, metric.type, metric.unit)
        parts += (_encoded(encode, head, end), text.encode())
    return content_type, b"".join((*parts, end))


def _encoded(encode: Callable[[Collector], bytes], metric: Metric, end: bytes) -> bytes:
    return encode(_Only(metric)).removesuffix(end)


def _samples(metric: Metric, escaped: _Escaped, numbers: _Numbers) -> str | None:
    """Write the samples of a metric; None if they are more than a name, labels and a number."""
    shapes: dict[tuple[str, ...], tuple[str, list[str]]] = {}
    lines = []
    for sample in metric.samples:
        name, labels, value = sample[:3]
        shape = shapes.get((name, *labels))
        if shape is None:
            if not _is_plain(sample):
                return None
            keys = sorted(labels)
            written = ",".join(f'{key}="%s"' for key in keys)
            shape = shapes[(name, *labels)] = (
                f"{name}{{{written}}} " if keys else f"{name} ",
                keys,
            )
        if sample.timestamp is not None or sample.exemplar or sample.native_histogram:
            return None
        line, keys = shape
        lines.append(line % tuple([escaped[labels[key]] for key in keys]) + numbers[value])
    return "".join(lines)


def _is_plain(sample: Sample) -> bool:
    names = (sample.name, *sample.labels)
    return not sample.name.endswith(_MOVED) and all(map(_NAME.fullmatch, names))


class _Only(Collector):
    """Collects some metrics."""

    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


class _Escaped(dict[str, str]):
    """Label values as they are written."""

    def __missing__(self, value: str) -> str:
        text = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        self[value] = text
        return text


class _Numbers(dict[float, str]):
    """Numbers as they are written, with the end of their lines."""

    def __missing__(self, number: float) -> str:
        text = f"{floatToGoString(number)}\n"  # type: ignore[no-untyped-call]
        self[number] = text
        return text
