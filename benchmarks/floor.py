"""The floor: redis-py taking 100 items with LPOP, decoding them and calling the function. No acks, no framework.

    python -m benchmarks.floor URL KEY MESSAGES        prints the seconds from the first LPOP to the last call
"""

from __future__ import annotations

import sys
import time

import msgspec

from benchmarks.apps import noop
from qworker.connection import ConnectionFactory


class _Call(msgspec.Struct):
    task: str
    args: tuple[int, str]


def main(url: str, key: str, messages: int) -> None:
    """Drain `messages` items of `key`."""
    redis = ConnectionFactory(url).redis()
    decode = msgspec.json.Decoder(_Call).decode
    function = noop.function
    redis.ping()
    print("ready", flush=True)
    sys.stdin.readline()
    begun, left = time.perf_counter(), messages
    while left:
        for item in redis.lpop(key, 100) or ():
            function(*decode(item).args)
            left -= 1
    print(time.perf_counter() - begun)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
