"""The floor of a drain: redis-py taking 100 items a call, decoding them and calling the function. No framework.

    python -m benchmarks.floor URL KEY MESSAGES json|msgspec|lease

prints the seconds from the first call to the last function call. `json` decodes with json.loads, as a script does,
`msgspec` into a typed struct, which is what qworker's own decoding is made of; both take with LPOP, without acks.
`lease` takes with a script that notes a lease of what it gives and forgets the last one, splits an envelope, and calls
in its own context: the least that at-least-once needs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import msgspec

from benchmarks.apps import noop
from qworker.store.connections import ConnectionFactory

__all__ = ["ENVELOPE"]

#: What stands before a body where there are leases: as long as a header of ours.
ENVELOPE = b"q1 AbCdEfGhIj0000000001 1935655200000 0 0 0 0\n"
_TAKE = """
redis.call('DEL', KEYS[3])
redis.call('ZREM', KEYS[2], KEYS[3])
local items = redis.call('LPOP', KEYS[1], 100)
if not items then return {} end
redis.call('RPUSH', KEYS[4], unpack(items))
redis.call('ZADD', KEYS[2], ARGV[1], KEYS[4])
return items
"""


class _Call(msgspec.Struct):
    task: str
    args: tuple[int, str]


def _with_json(item: bytes) -> list[object]:
    args: list[object] = json.loads(item)["args"]
    return args


def main(url: str, key: str, messages: int, way: str) -> None:
    """Drain `messages` items of `key`."""
    redis: Any = ConnectionFactory(url).redis()
    typed = msgspec.json.Decoder(_Call).decode
    run: Callable[[], None]
    if way == "lease":
        run = _leased(redis, key, messages, typed)
    else:
        arguments: Any = _with_json if way == "json" else lambda item: typed(item).args
        run = _popped(redis, key, messages, arguments)
    redis.ping()
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.perf_counter()
    run()
    print(time.perf_counter() - begun)


def _popped(redis: Any, key: str, messages: int, arguments: Any) -> Callable[[], None]:
    function = noop.function

    def run() -> None:
        left = messages
        while left:
            for item in redis.lpop(key, 100) or ():
                function(*arguments(item))
                left -= 1

    return run


def _leased(redis: Any, key: str, messages: int, typed: Any) -> Callable[[], None]:
    function, take = noop.function, redis.register_script(_TAKE)

    def run() -> None:
        left, number = messages, 0
        while left:
            leases = (f"{key}:lease:{number - 1}", f"{key}:lease:{number}")
            items = take((key, f"{key}:leases", *leases), (time.time() + 30,))
            number += 1
            for item in items:
                try:
                    call = typed(item.partition(b"\n")[2])
                    copy_context().run(function, *call.args)
                except msgspec.MsgspecError as error:
                    print(f"failed: {error}")
                left -= 1

    return run


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
