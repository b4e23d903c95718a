"""Faults of the network: lost replies, broken and slow connections, partitions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from qworker.engine.scripts import load_script
from verification.faults.consumers import LONG, REDELIVERY, nothing
from verification.faults.load import Load
from verification.faults.producer import Sending
from verification.faults.row import Row, at_least, at_most, exactly, within
from verification.faults.stage import Stage

__all__ = ["RECONNECT", "ROWS"]

#: How soon every process hears a server that answers again.
RECONNECT = within("reconnect_s", 5.0)
_SCRIPTS = {name: load_script(name).sha.encode() for name in ("send", "settle", "settle_receive")}


def lose_replies(role: str, script: str, every: int) -> Callable[[Stage], None]:
    """Lose every n-th reply to a script, of processes of a role; the script has run."""

    def course(stage: Stage) -> None:
        proxies = [proxy for name, proxy in stage.proxies.items() if name.startswith(role)]
        for proxy in proxies:
            proxy.cut_reply(every, _SCRIPTS[script])
        for _ in stage.goes_on(replies_lost=5):
            stage.measured["replies_lost"] = sum(proxy.replies_cut for proxy in proxies)

    return course


def lose_acks(stage: Stage) -> None:
    """Lose replies to the acks of consumers that use the low-level calls."""
    for _ in range(2):
        stage.pull()
    lose_replies("puller", "settle", 4)(stage)


def reset(stage: Stage) -> None:
    """Break every connection with a RST ten times a second."""
    for _ in stage.goes_on(0.1, resets=10):
        for proxy in stage.proxies.values():
            proxy.reset_all()
        stage.add("resets", 1)


def lose_packets(stage: Stage) -> None:
    """Lose every ninth request and every eleventh reply, of all clients."""
    for proxy in stage.proxies.values():
        proxy.cut_request(9)
        proxy.cut_reply(11)
    for _ in stage.goes_on(lost_packets=20):
        lost = [proxy.replies_cut + proxy.requests_cut for proxy in stage.proxies.values()]
        stage.measured["lost_packets"] = sum(lost)


def slow_down(*, delay_s: float = 0.0, bytes_per_s: float = 0.0) -> Callable[[Stage], None]:
    """Make every connection slow: this many seconds each way, or this many bytes a second."""

    def course(stage: Stage) -> None:
        for proxy in stage.proxies.values():
            proxy.delay_s, proxy.bytes_per_s = delay_s, bytes_per_s
        nothing(stage)

    return course


def swallow_all(stage: Stage) -> None:
    """Let nothing pass for three visibility timeouts, and close nothing: half-open connections."""
    time.sleep(1)
    stage.lose()
    _set(stage, "", blackhole=True)
    time.sleep(3 * stage.load.visibility_s)
    _set(stage, "", blackhole=False)
    stage.server_returned()
    stage.losses.clear()
    nothing(stage)


def cut_off_one(stage: Stage) -> None:
    """Cut one worker off for two and a half visibility timeouts, again and again: others take over."""
    for _ in stage.goes_on(1.0):
        worker = stage.workers[1]
        stage.lose(worker.process.pid, *worker.children())
        _set(stage, "worker-1", blackhole=True)
        time.sleep(2.5 * stage.load.visibility_s)
        _set(stage, "worker-1", blackhole=False)
        stage.server_returned(worker)
        stage.add("partitions", 1)


def _set(stage: Stage, role: str, *, blackhole: bool) -> None:
    for name, proxy in stage.proxies.items():
        if name.startswith(role):
            proxy.blackhole = blackhole


def kill_connections(stage: Stage) -> None:
    """Let an operator kill every connection five times a second."""
    client = stage.server.redis()
    for _ in stage.goes_on(0.2, killed=20):
        stage.add("killed", client.client_kill_filter(_type="normal", skipme=True))


def starve_connections(stage: Stage) -> None:
    """Allow fewer connections than there are, then tiny output buffers, and take both back."""
    client: Any = stage.server.redis()
    limits = client.config_get("maxclients", "client-output-buffer-limit")
    # Who gets no connection cannot keep its leases.
    stage.lose()
    for turn, _ in enumerate(stage.goes_on(1.0)):
        if turn % 2:
            client.config_set("client-output-buffer-limit", "normal 8192 8192 1")
        else:
            client.config_set("maxclients", 6)
            client.client_kill_filter(_type="normal", skipme=True)
        time.sleep(2)
        client.config_set("maxclients", limits["maxclients"])
        client.config_set("client-output-buffer-limit", "normal 0 0 0")
        stage.server_returned()
        stage.add("starved", 1)


PROXIED = Load(proxied=True)
LOSSY = Load(proxied=True, visibility=LONG)

ROWS = [
    Row(
        name="F5",
        fault="the reply of a receive is lost, and of the acks that ride on it",
        course=lose_replies("worker", "settle_receive", 8),
        load=LOSSY,
        bounds=(at_least("replies_lost", 5), at_most("duplicates", 0)),
        commit_s=1,
    ),
    Row(
        name="F6",
        fault="the reply of an ack is lost, of consumers that use the low-level calls",
        course=lose_acks,
        load=Load(proxied=True, visibility=LONG, workers=0, sending=Sending(mixed=False)),
        bounds=(at_least("replies_lost", 5), at_most("duplicates", 0)),
        commit_s=1,
    ),
    Row(
        name="F7",
        fault="the reply of a send is lost",
        course=lose_replies("p", "send", 5),
        load=LOSSY,
        bounds=(
            at_least("replies_lost", 5),
            exactly("sent_by_server", "attempts"),
            at_most("duplicates", 0),
        ),
        commit_s=1,
    ),
    Row(
        name="F25",
        fault="half-open connections: nothing passes for three visibility timeouts, nothing closes",
        course=swallow_all,
        load=PROXIED,
        bounds=(RECONNECT,),
        seconds=15,
        commit_s=1,
    ),
    Row(
        name="F26r",
        fault="every connection is reset ten times a second",
        course=reset,
        load=PROXIED,
        # No call may get through for longer than a lease lasts. Then a reaper takes its messages back, and counts them.
        bounds=(
            at_least("resets", 10),
            at_most("duplicates", "timeouts"),
            at_most("uncounted", 0),
        ),
    ),
    Row(
        name="F26l",
        fault="one request of nine and one reply of eleven are lost",
        course=lose_packets,
        load=PROXIED,
        bounds=(at_least("lost_packets", 20), at_most("duplicates", 0)),
    ),
    Row(
        name="F26b",
        fault="a link of 1 Mbit/s for each connection",
        course=slow_down(bytes_per_s=125_000),
        load=PROXIED,
        bounds=(at_most("duplicates", 0),),
        seconds=8,
    ),
    Row(
        name="F26d",
        fault="200 ms each way",
        course=slow_down(delay_s=0.2),
        load=PROXIED,
        bounds=(at_most("duplicates", 0),),
        seconds=8,
    ),
    Row(
        name="F27",
        fault="one worker is cut off for longer than its leases last, and comes back",
        course=cut_off_one,
        load=Load(proxied=True, fewest=2, sending=Sending(naps=0.5, nap_ms=10, rate=300)),
        bounds=(at_least("partitions", 1), at_most("unexplained", 0), REDELIVERY, RECONNECT),
        seconds=15,
    ),
    Row(
        name="F46",
        fault="an operator kills every connection five times a second",
        course=kill_connections,
        bounds=(at_least("killed", 20), at_most("duplicates", 0)),
        seconds=8,
    ),
    Row(
        name="F46b",
        fault="too few connections are allowed, and tiny output buffers",
        course=starve_connections,
        bounds=(at_least("starved", 1), at_most("unexplained", 0), RECONNECT),
    ),
]
