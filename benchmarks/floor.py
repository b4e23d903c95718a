"""The floor: redis-py taking 100 items with LPOP, decoding them and calling the function. No acks, no framework.

    python -m benchmarks.floor URL KEY MESSAGES json|msgspec

prints the seconds from the first LPOP to the last call. `json` decodes with json.loads, as a script does;
`msgspec` into a typed struct, which is what qworker's own decoding is made of.
"""

from __future__ import annotations

import json
import sys
import time

import msgspec

from benchmarks.apps import noop
from qworker.connection import ConnectionFactory


class _Call(msgspec.Struct):
    task: str
    args: tuple[int, str]


def _with_json(item: bytes) -> list[object]:
    args: list[object] = json.loads(item)["args"]
    return args


def main(url: str, key: str, messages: int, decoder: str) -> None:
    """Drain `messages` items of `key`."""
    redis = ConnectionFactory(url).redis()
    typed = msgspec.json.Decoder(_Call).decode
    arguments = _with_json if decoder == "json" else lambda item: typed(item).args
    function = noop.function
    redis.ping()
    print("ready", flush=True)
    sys.stdin.readline()
    begun, left = time.perf_counter(), messages
    while left:
        for item in redis.lpop(key, 100) or ():
            function(*arguments(item))
            left -= 1
    print(time.perf_counter() - begun)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
