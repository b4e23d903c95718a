"""A producer of chains, groups of calls and runs: starts each in turn, and gives its signal to a run a moment later.

    python -m verification.faults.flow_producer NAME '{"rate": …}'

It ends at SIGTERM, once all signals are given.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from qworker import chain, group
from qworker.errors import QworkerError, RunEndedError, RunUnknownError
from verification.faults.flow_jobs import (
    CHAIN_STEPS,
    GO,
    LATE,
    agathering,
    ajourney,
    alink,
    amember,
    app,
    follow,
    gather,
    gathering,
    journey,
    link,
    member,
    precede,
    win,
)
from verification.faults.history import History
from verification.faults.producer import Sending, in_doubt, steadily

_SIGNAL_AFTER_S = 0.3
_AGAIN_S = 0.1


def main() -> None:
    """Start flows until SIGTERM."""
    name, text = sys.argv[1:]
    sending = msgspec.json.decode(text, type=Sending)
    flows = Flows(name, History(os.environ["FAULTS_HISTORY"]))
    for number in steadily(sending, app.queue(sending.queue)):
        flows.start_chain(number)
        flows.start_group(number)
        flows.start_gathering(number)
        flows.start_race(number)
        flows.start_run(number)
        flows.signal()
    while flows.waiting:
        flows.signal()
        time.sleep(_AGAIN_S)
    app.close()


class Flows:
    """Starts flows and notes what became of each start. `waiting`: runs that have not got their signal."""

    def __init__(self, name: str, history: History) -> None:
        self._name, self._history = name, history
        #: When to give the next signal, its run and its queue.
        self.waiting: deque[tuple[float, str, str]] = deque()

    def start_chain(self, number: int) -> None:
        """Start a chain over two queues."""
        first, second = (link, alink) if number % 2 else (alink, link)
        steps = [f"{self._name}/{step}" for step in range(1, CHAIN_STEPS + 1)]
        flow = chain(
            first.call(f"{steps[0]}-{number}"),
            second.then(),
            first.then(),
            first.then(),
            second.then(),
        )
        self._start(steps, number, flow.send)

    def start_group(self, number: int) -> None:
        """Start a group of calls over two queues, with a group in it."""
        names = [f"{self._name}/{part}" for part in ("m0", "m1", "m2", "m3", "m4", "inner", "all")]
        *calls, inner, outer = [f"{name}-{number}" for name in names]
        nested = group([member.call(calls[3]), amember.call(calls[4])])
        flow = group(
            [
                amember.call(calls[0]),
                member.call(calls[1]),
                member.call(calls[2]),
                nested.then(gather, inner, calls[3:]),
            ]
        ).then(gather, outer, [*calls[:3], inner])
        self._start(names, number, flow.send)

    def start_gathering(self, number: int) -> None:
        """Start a run that gathers twice."""
        parts = ("g0", "g1", "g2", "g3", "mid", "gathered")
        names = [f"{self._name}/{part}" for part in parts]
        *calls, inner, key = [f"{name}-{number}" for name in names]
        task = gathering if number % 2 else agathering
        self._start(names, number, lambda: task.send(key, calls, inner))

    def start_race(self, number: int) -> None:
        """Start a group whose first success cancels the rest: only its callback has to run."""
        calls = [f"{self._name}/{part}" for part in ("quick", "slow", "after", "late")]
        won = f"{self._name}/won"
        quick, slow, after, late = [f"{name}-{number}" for name in calls]
        members = [
            chain(precede.call(slow), follow.then(after)),
            amember.call(quick),
            member.options(delay=LATE).call(late),
        ]
        flow = group(members, policy="first", cancel_rest=True)
        won_by = flow.then(win, f"{won}-{number}", [quick, after, late])
        self._start([won], number, won_by.send, optional=calls)

    def start_run(self, number: int) -> None:
        """Start a run under its own id, and remember to give it a signal."""
        producer, run_id = f"{self._name}/run", f"{self._name}-{number}"
        task = journey if number % 2 else ajourney
        sender = task.options(id=run_id)
        if self._start([producer], number, lambda: sender.send(f"{producer}-{number}")):
            self.waiting.append((time.monotonic() + _SIGNAL_AFTER_S, run_id, task.queue))

    def _start(
        self,
        producers: list[str],
        number: int,
        send: Callable[[], object],
        *,
        optional: Sequence[str] = (),
    ) -> bool:
        """Start a flow; returns whether it may have been stored. `optional`: producers of what may be cancelled."""
        words = [(producer, number, number) for producer in producers]
        may_run = [(producer, number, number) for producer in optional]
        self._history.note_all("sending", [*words, *may_run])
        try:
            send()
        except QworkerError as error:
            doubtful = in_doubt(error)
            self._history.note_all("doubt" if doubtful else "refused", [*words, *may_run])
            time.sleep(0.02)
            return doubtful
        self._history.note_all("sent", words, synced=True)
        return True

    def signal(self) -> None:
        """Give the signals that are due; one that fails is given again."""
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            _, run_id, queue = self.waiting.popleft()
            try:
                app.handle(queue, run_id).signal(run_id, name=GO)
            except (RunEndedError, RunUnknownError):
                continue  # the reply of the signal was lost, or the start was not stored
            except QworkerError:
                self.waiting.append((time.monotonic() + _AGAIN_S, run_id, queue))
                return


if __name__ == "__main__":
    main()
