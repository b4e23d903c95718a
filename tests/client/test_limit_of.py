"""What limits hold for a name: as the scripts decide it, for checks and screens."""

from __future__ import annotations

from qworker.client.manage.limit import Limit, limit_of
from tests.tables import each

KNOWN = {
    "acme/ann": Limit(concurrency=1, rate="5/s"),
    "acme/*": Limit(concurrency=2, rate="9/s", burst=7, weight=3.0),
    "acme/": Limit(concurrency=40),
    "*/": Limit(concurrency=50, max_waiting=60),
    "*": Limit(concurrency=3, max_waiting=6),
    "solo": Limit(weight=2.0),
}


@each(
    "name, limit",
    [
        ("acme/ann", Limit(concurrency=1, rate="5/s", weight=3.0, max_waiting=6)),
        ("=acme/ann", Limit(concurrency=1, rate="5/s", weight=3.0, max_waiting=6)),
        ("acme/bob", Limit(concurrency=2, rate="9/s", burst=7, weight=3.0, max_waiting=6)),
        ("other/bob", Limit(concurrency=3, max_waiting=6)),
        ("solo", Limit(concurrency=3, weight=2.0, max_waiting=6)),
        ("acme/", Limit(concurrency=40, max_waiting=60)),
        ("other/", Limit(concurrency=50, max_waiting=60)),
    ],
)
def test_the_limits_of_a_name_go_before_those_of_its_kind(name: str, limit: Limit) -> None:
    """One by one, but a burst goes with its own rate."""
    assert limit_of(KNOWN, name) == limit
