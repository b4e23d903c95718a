"""Keys as RSMQ, RQ and Celery write them, for tests that need more control than the real producers give."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from typing import Any

import redis

__all__ = ["add_celery", "add_rq", "add_rsmq"]


def add_rsmq(
    client: redis.Redis,
    queue: str,
    bodies: list[bytes],
    *,
    visible_ms: int = 1,
    received: int = 0,
    **attributes: int,
) -> list[str]:
    """Add messages to a queue of RSMQ, which is created; returns their ids."""
    ids = [f"{_base36(1_700_000_000_000_000 + at)}{'z' * 22}" for at in range(len(bodies))]
    pipe = client.pipeline()
    pipe.sadd("rsmq:QUEUES", queue)
    fields: Any = {"vt": 30, "delay": 0, "maxsize": 65536, **attributes}
    pipe.hset(f"rsmq:{queue}:Q", mapping=fields)
    for name, body in zip(ids, bodies, strict=True):
        pipe.zadd(f"rsmq:{queue}", {name: visible_ms})
        pipe.hset(f"rsmq:{queue}:Q", name, body)
        if received:
            pipe.hset(f"rsmq:{queue}:Q", mapping={f"{name}:rc": received, f"{name}:fr": 5})
    pipe.execute()
    return ids


def add_rq(
    client: redis.Redis, queue: str, job: str, *parts: Any, data: bytes | None = None, **fields: Any
) -> str:
    """Add a job to a queue of RQ; `parts` are its function and arguments."""
    function, *args = parts or ("shop.tasks.add",)
    plain = pickle.dumps((function, None, tuple(args), {}))
    content: Any = {"data": zlib.compress(plain) if data is None else data, **fields}
    content.setdefault("created_at", "2031-05-04T01:02:03.000004Z")
    client.sadd("rq:queues", f"rq:queue:{queue}")
    client.hset(f"rq:job:{job}", mapping=content)
    client.rpush(f"rq:queue:{queue}", job)
    return job


def add_celery(
    client: redis.Redis,
    queue: str,
    name: str,
    *args: Any,
    key: str = "",
    embed: dict[str, Any] | None = None,
    raw_body: str | None = None,
    change: dict[str, Any] | None = None,
    **headers: Any,
) -> bytes:
    """Add a message to a queue of Celery; returns it as stored."""
    body = json.dumps([list(args), {}, embed or {}]).encode()
    message = {
        "body": base64.b64encode(body).decode() if raw_body is None else raw_body,
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"task": "shop.tasks.add", "id": name, "retries": 0, **headers},
        "properties": {
            "delivery_info": {"exchange": "", "routing_key": queue},
            "body_encoding": "base64",
            "delivery_tag": f"tag-{name}",
        },
        **(change or {}),
    }
    raw = json.dumps(message).encode()
    client.sadd(f"_kombu.binding.{queue}", f"{queue}\x06\x16\x06\x16{queue}")
    client.lpush(key or queue, raw)
    return raw


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits
