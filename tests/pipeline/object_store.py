"""An object store for tests: moto's S3 over HTTP in a process, with signatures, rights and conditional puts checked.

    with object_store() as store:
        store.url("lake")                 s3://tests/lake
        store.environment("writer")       AWS_* of a user with all rights; "reader" may only read
        store.behave("full")              from now on puts of files are refused as by a store that is full
        store.behave("forgetful")         conditional puts overwrite, as in stores that do not know them
        store.behave("")                  as it should be

`python -m tests.pipeline.object_store` is the process. It ends with its standard input.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.servers import missing

BUCKET = "tests"
RIGHTS = {"writer": ["s3:*"], "reader": ["s3:GetObject", "s3:ListBucket"]}
FULL = b"<Error><Code>XMinioStorageFull</Code><Message>Storage backend is full</Message></Error>"


@dataclass
class Store:
    """A running store. `keys`: user → key and secret."""

    endpoint: str
    keys: dict[str, tuple[str, str]]

    def url(self, path: str) -> str:
        return f"s3://{BUCKET}/{path}"

    def environment(self, user: str = "writer") -> dict[str, str]:
        key, secret = self.keys[user]
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def behave(self, how: str) -> None:
        request = Request(f"{self.endpoint}/_behave", data=how.encode(), method="POST")
        with urlopen(request, timeout=60) as answer:
            assert answer.status == 200


@contextmanager
def object_store() -> Iterator[Store]:
    """Start a store with one bucket. Without its packages the test is skipped, or fails where CI=true."""
    for module in ("moto", "flask_cors"):
        if importlib.util.find_spec(module) is None:
            missing(f"{module} is not installed: pip install --group test")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.object_store"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "0", "PYTHONWARNINGS": "ignore"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        document = json.loads(process.stdout.readline())
        yield Store(
            document["endpoint"], {user: tuple(keys) for user, keys in document["keys"].items()}
        )
    finally:
        process.communicate(timeout=60)


class Behaviour:
    """Misbehaves on request, and lets one put at a time through: moto looks and then writes."""

    def __init__(
        self, app: Callable[..., Iterable[bytes]], forget: Callable[[str], object]
    ) -> None:
        self.app, self.forget = app, forget
        self.how, self.lock = "", threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == "/_behave":
            self.how = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()
            start("200 OK", [("Content-Length", "0")])
            return [b""]
        writes = method == "PUT" or (method == "POST" and "upload" in environ["QUERY_STRING"])
        if self.how == "full" and writes and path.endswith(".parquet"):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            head = [("Content-Type", "application/xml"), ("Content-Length", str(len(FULL)))]
            start("507 Insufficient Storage", head)
            return [FULL]
        if self.how == "forgetful" and "HTTP_IF_NONE_MATCH" in environ:
            self.forget(path.removeprefix(f"/{BUCKET}/"))
        if method != "PUT":
            return self.app(environ, start)
        with self.lock:
            return self.app(environ, start)


def serve() -> None:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.iam.models import iam_backends
    from moto.s3.models import s3_backends
    from moto.server import create_backend_app
    from werkzeug.serving import make_server

    iam = iam_backends[DEFAULT_ACCOUNT_ID]["global"]
    keys = {}
    for user, actions in RIGHTS.items():
        iam.create_user("us-east-1", user)
        rights = [{"Effect": "Allow", "Action": actions, "Resource": "*"}]
        iam.put_user_policy(
            user, "rights", json.dumps({"Version": "2012-10-17", "Statement": rights})
        )
        key = iam.create_access_key(user)
        keys[user] = (key.access_key_id, key.secret_access_key)
    s3 = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    s3.create_bucket(BUCKET, "us-east-1")
    app = Behaviour(create_backend_app("s3"), lambda key: s3.delete_object(BUCKET, key))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(
        json.dumps({"endpoint": f"http://127.0.0.1:{server.server_port}", "keys": keys}), flush=True
    )
    sys.stdin.read()


if __name__ == "__main__":
    serve()
