"""Faults of the server: killed, restarted, frozen, busy, emptied."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import redis

from verification.faults.consumers import LONG, nothing
from verification.faults.hooks import key_of
from verification.faults.load import Load
from verification.faults.network import RECONNECT
from verification.faults.producer import Sending
from verification.faults.row import Row, at_least, at_most, exactly
from verification.faults.server import FaultServer
from verification.faults.stage import Stage

__all__ = ["BEHIND", "ROWS", "a_server"]


def a_server(*arguments: str) -> Callable[[ExitStack, Path], FaultServer]:
    """Make a server with arguments."""
    return lambda stack, directory: FaultServer(*arguments)


def kill_server(down_s: float) -> Callable[[Stage], None]:
    """Kill the server with SIGKILL again and again, and start it after this many seconds."""

    def course(stage: Stage) -> None:
        for _ in stage.goes_on(1.0):
            stage.lose()
            in_flight = stage.load.producers * stage.load.sending.chunk
            begun, stored = time.monotonic_ns(), stage.stored
            stage.server.kill()
            # With what came between that look and the kill: confirmed, or with its reply on the way.
            stage.add("stored_then", stored + stage.confirmed(since=begun) + in_flight)
            stage.add("in_flight", in_flight)
            stage.add("server_kills", 1)
            time.sleep(down_s)
            stage.server.start()
            stage.server_returned()

    return course


def flush_scripts(stage: Stage) -> None:
    """Let the server forget its scripts ten times a second."""
    client = stage.server.redis()
    for _ in stage.goes_on(0.1, flushes=10):
        client.script_flush()
        stage.add("flushes", 1)


def keep_busy(stage: Stage) -> None:
    """Let a neighbour run a script that never ends, and kill it after three seconds."""
    client = stage.server.redis()
    client.config_set("busy-reply-threshold", 100)
    for _ in stage.goes_on(2.0):
        stage.lose()
        neighbour = stage.server.redis()
        connection: Any = neighbour.connection_pool.get_connection()
        connection.send_command("EVAL", "while true do end", 0)
        time.sleep(3.0)
        client.script_kill()
        stage.add("busy", 1)
        with suppress(redis.RedisError):
            connection.read_response()
        connection.disconnect()
        stage.server_returned()


def freeze_server(stage: Stage) -> None:
    """Let the server freeze for two and a half visibility timeouts."""
    for _ in stage.goes_on(1.0):
        stage.server.freeze()
        time.sleep(2.5 * stage.load.visibility_s)
        stage.server.thaw()
        stage.add("freezes", 1)
        stage.server_returned()
        # The grace after a gap has to be over, or the next one adds to it.
        time.sleep(1.0)


def flush_database(stage: Stage) -> None:
    """Delete everything once, under load; afterwards all continues."""
    time.sleep(1.0)
    with stage.server.redis().pipeline(transaction=True) as call:
        call.hget(stage.queue().keys.stats, "stored")
        call.flushdb()
        stored, _ = call.execute()
    stage.measured["stored_then"] = int(stored)
    stage.server_returned()
    stage.add("flushes", 1)
    nothing(stage)
    before = stage.acked
    stage.until(lambda: stage.acked > before, "ack after that")


def damage_file(stage: Stage) -> None:
    """Turn a byte in three stored messages in the AOF, and cut it off within the last send; start the server again.

    The workers stop first, so that what is damaged is still stored and what is cut off is a send: the turned bytes are
    in the mark of an envelope, in the name of a task, and in the key that is a message's argument.
    """
    client, ready = stage.server.redis(), stage.queue().keys.ready[0]
    for worker in stage.workers:
        worker.stop()
    stage.until(lambda: client.llen(ready) >= 500, "backlog")
    items: list[bytes] = client.lrange(ready, 100, 102)  # type: ignore[assignment]
    stage.server.kill()
    (path,) = (stage.server.data / "appendonlydir").glob("*.incr.aof")
    content = bytearray(path.read_bytes())
    for item, text in zip(items, (b"q1 ", b'"handle"', key_of(items[2]).encode()), strict=True):
        turned = content.rindex(item) + item.index(text) + (text[:1] == b'"')
        content[turned] = ord("z")
    path.write_bytes(content[: content.rindex(b"\nq1 ") + 20])
    changed = b"z" + key_of(items[2]).encode()[1:]
    producer, _, number = changed.decode().rpartition("-")
    # This one was never sent: its body was another when it was sent, and there is no checksum.
    stage.notebook.note("sending", producer, number, number)
    stage.server.start()
    stage.mind()
    stage.server_returned()
    nothing(stage)
    stage.until(lambda: stage.queue().inspect().dead >= 2, "dead letters of what was damaged")
    reasons = Counter(dead_letter.reason for dead_letter in stage.queue().dead(1000))
    stage.measured["buried_foreign"] = reasons["foreign"]
    stage.measured["buried_unknown"] = reasons["unknown_task"]
    done = {event.rest[0] for event in stage.notes("done")}
    stage.measured["unnoticed"] = changed.decode() in done


#: More than the workers can do: messages are stored whenever something happens to the server.
BEHIND = Sending(naps=0.5, nap_ms=10, backlog=1000)
KILLED = (at_least("server_kills", 1), at_most("unexplained", 0), RECONNECT)
#: What a server that was killed had not written is gone: sends that were confirmed, and acks.
NOT_WRITTEN = "the server keeps nothing on disk (no AOF)"

ROWS = [
    Row(
        name="F21",
        fault="the server is killed and starts again after a second, AOF synced every second",
        course=kill_server(1.0),
        bounds=KILLED,
        seconds=15,
    ),
    Row(
        name="F21a",
        fault="the server is killed and starts again after a second, AOF synced always",
        course=kill_server(0.5),
        server=a_server("--appendfsync", "always"),
        load=Load(visibility=LONG),
        bounds=KILLED,
        seconds=10,
        commit_s=1,
    ),
    Row(
        name="F22",
        fault="the server is killed and starts again, without an AOF",
        course=kill_server(1.0),
        server=a_server("--appendonly", "no"),
        load=Load(sending=BEHIND),
        mends=("unregistered",),  # a reaper finds the queue again within 10 s
        takes=NOT_WRITTEN,
        undoes="a send whose reply was on its way is repeated, and its lane is forgotten",
        bounds=(
            at_least("stored_then", 1),
            at_most("taken", "stored_then"),
            at_most("undone", "in_flight"),
            at_least("server_kills", 1),
            RECONNECT,
        ),
        seconds=6,
    ),
    Row(
        name="F23",
        fault="the server is down for 30 s",
        course=kill_server(30.0),
        bounds=KILLED,
        seconds=1,
    ),
    Row(
        name="F24",
        fault="the server forgets its scripts ten times a second",
        course=flush_scripts,
        bounds=(at_least("flushes", 10), at_most("duplicates", 0)),
        seconds=8,
    ),
    Row(
        name="F37",
        fault="the AOF is cut off within a send, and a byte has turned in three stored messages",
        course=damage_file,
        load=Load(max_receives=3, flags=("--unknown-wait", "0")),
        # Who buries a foreign item cannot know that it was counted when it was sent.
        mends=("counter",),
        takes="the send that is cut off is lost, and a changed body is handled as it is",
        bounds=(
            exactly("buried_foreign", 1),
            exactly("buried_unknown", 1),
            exactly("unnoticed", 1),
            # One chunk, and the message that has become another.
            at_most("taken", Sending().chunk + 1),
            at_least("taken", 1),
            RECONNECT,
        ),
        seconds=4,
    ),
    Row(
        name="F40a",
        fault="a neighbour's script keeps the server busy for three seconds",
        course=keep_busy,
        # Leases that were held before stay with their holders: nothing is delivered again.
        bounds=(at_least("busy", 1), at_most("duplicates", 0), RECONNECT),
        seconds=10,
    ),
    Row(
        name="F40b",
        fault="the server is frozen for two and a half visibility timeouts",
        course=freeze_server,
        load=Load(sending=Sending(naps=0.2, nap_ms=10, rate=500)),
        bounds=(at_least("freezes", 1), at_most("duplicates", 0), RECONNECT),
        seconds=10,
    ),
    Row(
        name="F48",
        fault="FLUSHDB under load",
        course=flush_database,
        load=Load(sending=BEHIND),
        takes="an operator deletes everything",
        bounds=(at_least("stored_then", 1), at_most("taken", "stored_then"), RECONNECT),
        seconds=4,
    ),
]
