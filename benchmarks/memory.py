"""memory: what a stored message of 100 bytes takes of the server, ready, delayed and unacked."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.figures import Figure, at_least, at_most, gave_up, measured, ratio
from benchmarks.peers.catalog import Peer
from benchmarks.peers.contest import Contest, acking, rivals
from benchmarks.rounds import interleave
from benchmarks.stand import Plan, Stand
from qworker.client.queue import Queue

__all__ = ["memory"]

_BODY = b"x" * 100
_CHUNK = 10_000
_LEASE = 100
_STATES = ("ready", "delayed", "unacked")


def memory(plan: Plan) -> list[Figure]:
    """Measure bytes per message, beside the envelope, the body, and what peers take of a message that is ready."""
    contenders: dict[str, Callable[[], dict[str, float]]] = {
        state: lambda state=state: _ours(plan.messages, state)  # type: ignore[misc]
        for state in _STATES
    }
    for peer in rivals(plan):
        contenders[peer.name] = lambda peer=peer: _peer(peer, plan)  # type: ignore[misc]
    samples = interleave(contenders, plan.rounds, plan.say)
    ready = samples.of("ready", "bytes")
    figures = [
        measured("memory", contender, samples.of(contender, "bytes"), "bytes/message")
        for contender in samples.having("bytes")
    ]
    envelope = samples.of("ready", "envelope")
    figures += [
        ratio("memory", "ready to the envelope", ready, envelope, at_most(1.1)),
        ratio("memory", "ready to the body", ready, [len(_BODY)] * len(ready), at_most(2.1)),
    ]
    delaying = {peer.name for peer in rivals(plan) if peer.delays}
    leanest = min(
        (name for name in acking(plan, samples, "bytes") if name in delaying),
        key=lambda name: min(samples.of(name, "bytes")),
        default=None,
    )
    if leanest is not None:
        theirs = samples.of(leanest, "bytes")
        measure = f"the leanest peer with acks and delays, {leanest}, ready, to ours"
        figures.append(ratio("memory", measure, theirs, ready, at_least(1)))
    return [*figures, *gave_up("memory", samples.gave_up)]


def _ours(messages: int, state: str) -> dict[str, float]:
    with Stand() as stand:
        queue = stand.queue()
        _fill(queue, 1, state)
        before = stand.memory()
        for first in range(0, messages, _CHUNK):
            _fill(queue, min(_CHUNK, messages - first), state)
        used = stand.memory() - before
        head = stand.redis.lindex(queue.keys.ready[0], 0)
    measures = {"bytes": used / messages}
    return measures if head is None else {**measures, "envelope": float(len(head))}


def _fill(queue: Queue, messages: int, state: str) -> None:
    queue.send_many([_BODY] * messages, delay="1h" if state == "delayed" else None)
    if state == "unacked":
        while queue.receive(_LEASE, visibility="1h"):
            pass


def _peer(peer: Peer, plan: Plan) -> dict[str, float]:
    jobs = min(peer.jobs, plan.messages)
    with Stand() as stand:
        contest = Contest(peer, plan, stand, jobs)
        contest.send("send", 0, 64)
        before = stand.memory()
        contest.measured()
        return {"bytes": (stand.memory() - before) / jobs}
