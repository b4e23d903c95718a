"""network: the server 1 ms and 5 ms away: draining, a lone message's way, sends one at a time, slow handlers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median

from benchmarks import drain, idle, send, slow
from benchmarks.contenders import Contender
from benchmarks.figures import Figure, Goal, at_least, at_most, gave_up, measured, ratio
from benchmarks.peers.catalog import Peer
from benchmarks.peers.contest import idle_times, life, rivals
from benchmarks.rounds import Samples, interleave
from benchmarks.stand import Plan, Stand

__all__ = ["network"]

_OURS = "qworker"
#: ms of a round trip, with the least share of the rate of `drain` that is left there.
_DISTANCES: dict[float, Goal] = {1: at_least(0.85), 5: at_least(0.6)}
_RATES = {"drain": "messages/s", "send": "messages/s", "slow": "messages/s"}
#: Messages one by one: a minute at most, whatever the distance.
_SENT, _PACED = 500, 50
#: A peer may take thirty round trips for a job.
_PEER_JOBS: dict[float, int] = {1: 600, 5: 200}


def network(plan: Plan) -> list[Figure]:
    """Measure at each distance, ours beside what it does without one, and beside the peers there."""
    contenders: dict[str, Contender] = {}
    for rtt_ms in (0, *_DISTANCES):
        contenders[_at(_OURS, rtt_ms)] = partial(_ours, plan, rtt_ms)
    for peer in rivals(plan):
        for rtt_ms in _DISTANCES:
            contenders[_at(peer.name, rtt_ms)] = partial(_peer, plan, peer, rtt_ms)
    samples = interleave(contenders, plan.rounds, plan.say)
    figures = [
        measured("network", f"{contender}: {work}", samples.of(contender, work), unit)
        for contender in samples.having("drain")
        for work, unit in {**_RATES, "idle": "ms"}.items()
    ]
    for rtt_ms, least in _DISTANCES.items():
        figures += _to_near(samples, rtt_ms, least)
        figures += _to_peers(plan, samples, rtt_ms)
    return [*figures, *gave_up("network", samples.gave_up)]


def _at(name: str, rtt_ms: float) -> str:
    return f"{name}, {rtt_ms:g} ms away"


def _ours(plan: Plan, rtt_ms: float) -> dict[str, float]:
    with Stand.away(rtt_ms):
        return {
            "drain": drain.of_ours(plan.messages, drain.Variant())["rate"],
            "send": send.one_at_a_time(_SENT)["rate"],
            "idle": 1000 * median(idle.of_ours(_PACED)),
            "slow": slow.of_ours(plan, slow.COROUTINES)["rate"],
        }


def _peer(plan: Plan, peer: Peer, rtt_ms: float) -> dict[str, float]:
    few = replace(plan, messages=min(plan.messages, _PEER_JOBS[rtt_ms]))
    with Stand.away(rtt_ms):
        rates = life(peer, few)
        return {
            "drain": rates["rate"],
            "send": rates["send_rate"],
            "idle": 1000 * median(idle_times(peer, few, _PACED, idle.PAUSE_S)),
            "slow": slow.of_peer(few, peer)["rate"],
        }


def _to_near(samples: Samples, rtt_ms: float, least: Goal) -> Iterator[Figure]:
    """Compare with what we do right beside the server."""
    near, far = _at(_OURS, 0), _at(_OURS, rtt_ms)
    measure = f"drain, {rtt_ms:g} ms away to its own rate"
    yield ratio("network", measure, samples.of(far, "drain"), samples.of(near, "drain"), least)
    trips = [
        (there - here) / rtt_ms
        for there, here in zip(samples.of(far, "idle"), samples.of(near, "idle"), strict=True)
    ]
    measure = f"start of a lone message, {rtt_ms:g} ms away, beyond its local time"
    yield measured("network", measure, trips, "round trips", at_most(1.5))


def _to_peers(plan: Plan, samples: Samples, rtt_ms: float) -> Iterator[Figure]:
    """Compare each work with the peer that is best at it: rates as ours to theirs, times as theirs to ours."""
    named = {_at(peer.name, rtt_ms): peer.name for peer in rivals(plan)}
    peers = [contender for contender in samples.having("drain") if contender in named]
    ours = _at(_OURS, rtt_ms)
    for work in (*_RATES, "idle") if peers else ():
        measured_of = {peer: median(samples.of(peer, work)) for peer in peers}
        best = (min if work == "idle" else max)(peers, key=measured_of.__getitem__)
        above, below = (best, ours) if work == "idle" else (ours, best)
        words = f"{named[best]} to ours" if work == "idle" else f"to the best peer, {named[best]}"
        measure = f"{work}, {rtt_ms:g} ms away, {words}"
        sides = samples.of(above, work), samples.of(below, work)
        yield ratio("network", measure, *sides, at_least(1))
