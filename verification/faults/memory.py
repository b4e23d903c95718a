"""Faults of memory and disk: a server that is full, that evicts, whose disk is full; keys that vanish."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from qworker.wire.leases import held_items
from verification.faults import system
from verification.faults.consumers import LONG, nothing
from verification.faults.hooks import key_of
from verification.faults.load import Load
from verification.faults.network import RECONNECT
from verification.faults.producer import Sending
from verification.faults.row import Row, at_least, at_most, exactly
from verification.faults.server import FaultServer
from verification.faults.servers import BEHIND, a_server
from verification.faults.stage import Stage

__all__ = ["ROWS"]


def fill_up(stage: Stage) -> None:
    """Fill the server: sends are refused, stored messages are handled, and then all continues."""
    client = stage.server.redis()
    for _ in stage.goes_on(0.5):
        client.config_set("maxmemory", 1)
        stage.measured["drained_full_s"] = round(stage.drain(), 2)
        client.config_set("maxmemory", 0)
        stage.add("full", 1)
        time.sleep(1.0)
    stage.measured["refused"] = len(stage.notes("refused"))


def evict(stage: Stage) -> None:
    """A daemon that is strict refuses a server that evicts; one that only warns says so."""
    strict = stage.command("daemon", "--durability", "strict", "--metrics-port", "0")
    stage.measured["strict_code"] = strict.wait()
    stage.until(lambda: _warned_of(stage, "maxmemory-policy"), "warning")
    stage.measured["warned"] = 1
    nothing(stage)
    client = stage.server.redis()
    ours = [key for key in client.scan_iter(count=1000) if client.ttl(key) >= 0]
    stage.measured["keys_that_expire"] = len(ours)


def _warned_of(stage: Stage, setting: str) -> bool:
    return any(setting in str(event) for event in stage.logged("durability_problem_found"))


def delete_keys(stage: Stage) -> None:
    """Delete one key after the other under load: deadlines, leases, counters, lanes, the doorbell."""
    client, keys = stage.server.redis(), stage.queue().keys
    for turn, _ in enumerate(stage.goes_on(0.5, deletions=4)):
        stage.lose()
        names = [keys.unacked, keys.stats, keys.producers, keys.wake]
        client.delete(names[turn % len(names)])
        stage.add("deletions", 1)
    stage.stop_producers()
    # What was in a lease that has lost its deadline waits for a repair, as does a counter.
    stage.measured["repaired"] = len(stage.repair())


def delete_messages(stage: Stage) -> None:
    """Delete keys that hold messages or attributes: messages in them are gone, or end where they run.

    Each is read and deleted in one transaction, so what was in it is known by name.
    """
    client, keys = stage.server.redis(), stage.queue().keys

    def delete(key: str, read: str, *words: Any) -> list[bytes]:
        with client.pipeline(transaction=True) as call:
            call.execute_command(read, key, *words)  # type: ignore[no-untyped-call]
            call.delete(key)
            contents, _ = call.execute()
        return [*chain(*contents.items())] if isinstance(contents, dict) else contents

    def delete_lease() -> list[bytes]:
        leases: list[Any] = [*client.zrange(keys.unacked, 0, -1)]
        if not leases:
            return []
        key = keys.lease_prefix + stage.chance.choice(leases).decode()
        return [item for _, item in held_items(delete(key, "HGETALL"))]

    def delete_meta() -> list[bytes]:
        known = delete(keys.meta, "HGETALL")
        time.sleep(0.5)
        stage.configure(stage.load.sending.queue)
        stage.add("deleted_meta", bool(known))
        return []

    deletes: dict[str, Callable[[], list[bytes]]] = {
        "ready": lambda: delete(keys.ready[0], "LRANGE", 0, -1),
        "leased": delete_lease,
        "delayed": lambda: delete(keys.delayed, "ZRANGE", 0, -1),
        "attributes": delete_meta,
    }
    wanted = {f"deleted_{name}": 1 for name in ("ready", "leased", "delayed", "meta")}
    for turn, _ in enumerate(stage.goes_on(0.3, **wanted)):
        name = list(deletes)[turn % len(deletes)]
        contents = {key_of(item) for item in deletes[name]()}
        stage.gone |= contents
        if name != "attributes":
            stage.add(f"deleted_{name}", len(contents))
    stage.measured["deleted"] = len(stage.gone)
    stage.stop_producers()
    stage.measured["repaired"] = len(stage.repair())


def turn_types(stage: Stage) -> None:
    """Put a key of another type in the place of one of ours, and take it away, without a pop in between."""
    client, keys = stage.server.redis(), stage.queue().keys
    for turn, _ in enumerate(stage.goes_on(0.5, wrong_types=4)):
        name = [keys.dead, keys.suspect, keys.cancelled, keys.unique][turn % 4]
        if client.set(name, "not ours", nx=True):
            time.sleep(0.5)
            client.delete(name)
            stage.add("wrong_types", 1)


def small_disk(size: str) -> Callable[[ExitStack, Path], FaultServer]:
    """Make a server whose files lie on a small disk."""

    def make(stack: ExitStack, directory: Path) -> FaultServer:
        disk = stack.enter_context(system.tmpfs(size))
        return FaultServer("--auto-aof-rewrite-percentage", "0", directory=disk)

    return make


def fill_disk(stage: Stage) -> None:
    """Let the disk run full: sends are refused, and accepted again when there is room."""
    ballast = stage.server.data / "ballast"
    for _ in stage.goes_on(1.0):
        refused = len(stage.notes("refused"))
        with suppress(OSError):  # full before we are done: the server has written meanwhile
            free = os.statvfs(stage.server.data)
            ballast.write_bytes(bytes(free.f_bavail * free.f_bsize))
        stage.until(lambda: len(stage.notes("refused")) > refused, "refusal for want of disk")  # noqa: B023
        ballast.unlink()
        stage.add("disk_full", 1)
        stage.server_returned()
    stage.measured["refused"] = len(stage.notes("refused"))


def disk_reason() -> str:
    """Why no small disk can be made here; '' where one can."""
    try:
        with system.tmpfs("1m"):
            return ""
    except (OSError, AttributeError) as error:
        return str(error)


ROWS = [
    Row(
        name="F33",
        fault="the server is at maxmemory, and is drained",
        course=fill_up,
        load=Load(visibility=LONG),
        bounds=(at_least("full", 1), at_least("refused", 1), at_most("duplicates", 0)),
        seconds=8,
        commit_s=1,
    ),
    Row(
        name="F34",
        fault="a server that evicts",
        course=evict,
        server=a_server("--maxmemory-policy", "allkeys-lru"),
        bounds=(exactly("strict_code", 3), exactly("warned", 1), exactly("keys_that_expire", 0)),
        seconds=3,
    ),
    Row(
        name="F35",
        fault="keys vanish under load: deadlines, counters, lanes, the doorbell",
        course=delete_keys,
        mends=("no deadline", "counter", "two places", "unregistered"),
        bounds=(at_least("deletions", 4), at_most("unexplained", 0)),
        seconds=8,
    ),
    Row(
        name="F35d",
        fault="keys vanish that hold messages: ready, delayed, a lease; and the attributes",
        course=delete_messages,
        load=Load(sending=BEHIND),
        takes="messages in a deleted key that were not running",
        mends=("counter", "no messages", "level", "unregistered"),
        bounds=(
            at_least("deleted_ready", 1),
            at_least("deleted_leased", 1),
            at_least("deleted_delayed", 1),
            at_least("deleted_meta", 1),
            at_most("taken", "deleted"),
            at_most("unexplained", 0),
        ),
        seconds=8,
    ),
    Row(
        name="F35b",
        fault="keys of another type stand in the place of ours for a while",
        course=turn_types,
        bounds=(at_least("wrong_types", 4), at_most("duplicates", 0)),
        seconds=10,
    ),
    Row(
        name="F36",
        fault="the disk of the AOF is full for a while",
        course=fill_disk,
        server=small_disk("24m"),
        load=Load(sending=Sending(rate=300)),
        needs=disk_reason,
        bounds=(at_least("disk_full", 1), at_least("refused", 1), RECONNECT),
        seconds=8,
    ),
]
