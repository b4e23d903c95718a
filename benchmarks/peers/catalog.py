"""The peers: what is installed for each, and how many jobs one run of it takes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DBOS", "PEERS", "Peer"]

_HIREDIS = "hiredis==3.5.0"
_REDIS = "redis==7.4.1"
_UVLOOP = "uvloop==0.23.0"


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer: its pinned requirements, whether it acks after the handler, and jobs per run for its speed.

    `delays`: whether jobs can be sent for later without a process beside the worker. `batches`: whether its worker has
    a setting for how many jobs it takes at a time. `one_by_one`: a process of it runs one job at a time, and no more.
    """

    name: str
    requires: tuple[str, ...]
    acks: bool
    jobs: int
    delays: bool = True
    batches: bool = False
    one_by_one: bool = False

    @property
    def guarantee(self) -> str:
        """What happens to a job whose worker dies."""
        return "at least once" if self.acks else "at most once: no acks"


_ALL = (
    # kombu imports packaging without requiring it.
    Peer("celery", ("celery==5.7.0", "packaging==26.3", _REDIS, _HIREDIS), acks=True, jobs=3000),
    Peer(
        "dramatiq",
        ("dramatiq==2.2.1", _REDIS, _HIREDIS),
        acks=True,
        jobs=6000,
        batches=True,
    ),
    Peer("rq", ("rq==2.12.0", _REDIS, _HIREDIS), acks=True, jobs=600, one_by_one=True),
    Peer(
        "repid",
        # Imported by it, but not among its requirements.
        ("repid==2.1.4", "typing_extensions==4.16.0", _REDIS, _HIREDIS, _UVLOOP),
        acks=True,
        jobs=6000,
        delays=False,
        batches=True,
    ),
    Peer("huey", ("huey==3.5.4", _REDIS, _HIREDIS), acks=False, jobs=5000),
    # Its own cap is redis-py 5.
    Peer("arq", ("arq==0.28.0", "redis==5.3.1", _HIREDIS, _UVLOOP), acks=True, jobs=4000),
    Peer(
        "saq",
        # typing_extensions: as for repid.
        ("saq==0.26.4", "orjson==3.13.0", "typing_extensions==4.16.0", _REDIS, _HIREDIS, _UVLOOP),
        acks=True,
        jobs=4000,
    ),
    # The pair that works together: 0.13 does not import with the taskiq-redis that redis-py 7 allows.
    Peer(
        "taskiq",
        ("taskiq==0.12.6", "taskiq-redis==1.2.3", "redis==8.1.0", _HIREDIS, _UVLOOP),
        acks=True,
        jobs=5000,
        delays=False,
        batches=True,
    ),
)

#: It has no queue on Redis: a peer of runs alone.
DBOS = Peer("dbos", ("dbos==3.4.0", "pgserver==0.1.4"), acks=True, jobs=500)

#: By name.
PEERS = {peer.name: peer for peer in _ALL}
