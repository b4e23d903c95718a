"""The floor of a bulk send: one redis-py process reads the rows, writes them as JSON and pipelines RPUSH.

    python -m benchmarks.bulk_floor URL KEY FILE VALUES

prints the seconds from opening the Parquet file to the last reply. VALUES rows go into each RPUSH, 10 of them into a
pipeline (with VALUES 1: 1,000 of them).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

from qworker.store.connections import ConnectionFactory


def main(url: str, key: str, directory: str, values: int) -> None:
    """Push the rows of all files of a directory."""
    redis = ConnectionFactory(url).redis()
    redis.ping()
    begun = time.perf_counter()
    calls = 1000 if values == 1 else 10
    pipe, held = redis.pipeline(transaction=False), 0
    for file in sorted(Path(directory).glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(batch_size=10_000):
            bodies = [json.dumps(row).encode() for row in batch.to_pylist()]
            for first in range(0, len(bodies), values):
                pipe.rpush(key, *bodies[first : first + values])
                held += 1
                if held == calls:
                    pipe.execute()
                    held = 0
    pipe.execute()
    print(time.perf_counter() - begun)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
