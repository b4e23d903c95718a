"""length: whether a message costs more in a longer queue."""

from __future__ import annotations

from benchmarks.figures import Figure, at_most, measured, ratio
from benchmarks.rounds import interleave
from benchmarks.stand import PAD, Plan, Stand
from qworker.client.queue import Queue

__all__ = ["length"]

_BATCH = 100
_WORKED = 100_000
_CHUNK = 1000
_FILL = 100_000


def length(plan: Plan) -> list[Figure]:
    """Measure the server's CPU of send, receive and ack, from a thousand messages to the plan's, by tens."""
    sizes = [_CHUNK]
    while sizes[-1] * 10 <= plan.messages:
        sizes.append(sizes[-1] * 10)
    contenders = {f"{size:,}": lambda size=size: _cost(size) for size in sizes}
    samples = interleave(contenders, plan.rounds, plan.say)
    figures = [
        measured(
            "length",
            f"{contender} messages: server CPU",
            samples.of(contender, "cpu_us"),
            "µs/message",
        )
        for contender in contenders
    ]
    shortest, longest = (samples.of(f"{size:,}", "cpu_us") for size in (sizes[0], sizes[-1]))
    measure = f"server CPU at {sizes[-1]:,} to {sizes[0]:,} messages"
    return [*figures, ratio("length", measure, longest, shortest, at_most(1.1))]


def _cost(size: int) -> dict[str, float]:
    with Stand() as stand:
        queue = stand.queue()
        for first in range(0, size, _FILL):
            _send(queue, min(_FILL, size - first))
        _turn(queue)
        before = stand.spent()
        for _ in range(0, _WORKED, _BATCH):
            _turn(queue)
        return (stand.spent() - before).per(_WORKED)


def _turn(queue: Queue) -> None:
    """Send, receive and ack a batch: the length stays what it is."""
    _send(queue, _BATCH)
    queue.ack(*queue.receive(_BATCH))


def _send(queue: Queue, messages: int) -> None:
    queue.send_many({"number": number, "pad": PAD} for number in range(messages))
