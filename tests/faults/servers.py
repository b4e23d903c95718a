"""Faults of the server: killed, restarted, frozen, busy, emptied."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import redis

from tests.faults.consumers import LONG, nothing
from tests.faults.load import Load
from tests.faults.network import RECONNECT
from tests.faults.producer import Sending
from tests.faults.row import Row, at_least, at_most
from tests.faults.server import FaultServer
from tests.faults.stage import Stage

__all__ = ["ROWS", "a_server"]


def a_server(*arguments: str) -> Callable[[ExitStack, Path], FaultServer]:
    """Make a server with arguments."""
    return lambda stack, directory: FaultServer(*arguments)


def kill_server(down_s: float) -> Callable[[Stage], None]:
    """Kill the server with SIGKILL again and again, and start it after so many seconds."""

    def course(stage: Stage) -> None:
        for _ in stage.goes_on(1.0):
            stage.lose()
            stage.server.kill()
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
    """Let the server stand still for two and a half visibility timeouts."""
    for _ in stage.goes_on(1.0):
        stage.server.freeze()
        time.sleep(2.5 * stage.load.visibility_s)
        stage.server.thaw()
        stage.add("freezes", 1)
        stage.server_returned()
        # The grace after a gap has to be over, or the next one adds to it.
        time.sleep(1.0)


def flush_database(stage: Stage) -> None:
    """Delete everything once, under load; afterwards all goes on."""
    time.sleep(1.0)
    client = stage.server.redis()
    client.flushdb()
    stage.server_returned()
    stage.add("flushes", 1)
    nothing(stage)
    before = stage.acked
    stage.until(lambda: stage.acked > before, "ack after that")


def damage_file(stage: Stage) -> None:
    """Kill the server, cut the end of its AOF off and turn a byte in the middle of a body; start it again."""
    time.sleep(2.0)
    stage.server.kill()
    (path,) = (stage.server.data / "appendonlydir").glob("*.incr.aof")
    content = path.read_bytes()[:-20]
    at = content.rfind(b'"task":"handle"', 0, len(content) // 2)
    path.write_bytes(content[: at + 9] + b"X" + content[at + 10 :])
    stage.server.start()
    stage.server_returned()
    stage.add("damages", 1)
    nothing(stage)


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
        takes=NOT_WRITTEN,
        bounds=(at_least("server_kills", 1), RECONNECT),
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
        fault="the end of the AOF is cut off, and a byte of a body has turned",
        course=damage_file,
        takes="the last of what was written is cut off the file",
        bounds=(at_least("damages", 1), RECONNECT),
        seconds=4,
    ),
    Row(
        name="F40a",
        fault="a neighbour's script keeps the server busy for three seconds",
        course=keep_busy,
        bounds=(at_least("busy", 1), at_most("unexplained", 0), RECONNECT),
        seconds=10,
    ),
    Row(
        name="F40b",
        fault="the server stands still for two and a half visibility timeouts",
        course=freeze_server,
        load=Load(sending=Sending(naps=0.2, nap_ms=10, rate=500)),
        bounds=(at_least("freezes", 1), at_most("duplicates", 0), RECONNECT),
        seconds=10,
    ),
    Row(
        name="F48",
        fault="FLUSHDB under load",
        course=flush_database,
        takes="an operator deletes everything",
        bounds=(at_least("flushes", 1), RECONNECT),
        seconds=4,
    ),
]
