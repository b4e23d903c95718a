"""An object store for tests: moto's S3 over HTTP in a process, with signatures, rights and conditional puts checked.

    with object_store() as store:         a bucket of one's own
        store.url("lake")                 s3://tests-1/lake
        store.environment("writer")       AWS_* of a user with all rights; "reader" may only read
        store.behave("full")              from now on puts of files are refused as by a store that is full
        store.behave("forgetful")         conditional puts overwrite, as in stores that do not know them
        store.behave("")                  as it should be

`python -m tests.pipeline.object_store` is the process, one per pytest process: its imports take seconds. It ends with
its standard input.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from tests.servers import missing

if TYPE_CHECKING:
    from moto.s3.models import S3Backend

#: The numbers of buckets.
NUMBERS = count(1)
RIGHTS = {"writer": ["s3:*"], "reader": ["s3:GetObject", "s3:ListBucket"]}
FULL = b"<Error><Code>XMinioStorageFull</Code><Message>Storage backend is full</Message></Error>"


@dataclass
class Store:
    """A bucket of a running store. `keys`: user → key and secret."""

    bucket: str
    endpoint: str
    keys: dict[str, tuple[str, str]]

    def url(self, path: str) -> str:
        return f"s3://{self.bucket}/{path}"

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
        self._tell("_behave", how)

    def make(self) -> None:
        self._tell("_make", self.bucket)

    def _tell(self, what: str, word: str) -> None:
        request = Request(f"{self.endpoint}/{what}", data=word.encode(), method="POST")
        with urlopen(request, timeout=60) as answer:
            assert answer.status == 200


@contextmanager
def object_store() -> Iterator[Store]:
    """Make a bucket in the store of this process. Without its packages the test is skipped, or fails where CI=true."""
    for module in ("moto", "flask_cors"):
        if importlib.util.find_spec(module) is None:
            missing(f"{module} is not installed: pip install --group test")
    _, document = _started()
    keys = {user: tuple(pair) for user, pair in document["keys"].items()}
    store = Store(f"tests-{next(NUMBERS)}", document["endpoint"], keys)
    store.make()
    try:
        yield store
    finally:
        store.behave("")


@cache
def _started() -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start the store of this process, which ends with it; and what it says of itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.object_store"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "0", "PYTHONWARNINGS": "ignore"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    atexit.register(_end, process)
    return process, json.loads(process.stdout.readline())


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close its standard input, and wait."""
    with process:
        pass


class Behaviour:
    """Misbehaves on request, and lets one put at a time through: moto looks and then writes."""

    def __init__(self, app: Callable[..., Iterable[bytes]], s3: S3Backend) -> None:
        self.app, self.s3 = app, s3
        self.how, self.lock = "", threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path in ("/_behave", "/_make"):
            word = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()
            with self.lock:
                self.obey(path, word)
            start("200 OK", [("Content-Length", "0")])
            return [b""]
        writes = method == "PUT" or (method == "POST" and "upload" in environ["QUERY_STRING"])
        if self.how == "full" and writes and path.endswith(".parquet"):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            head = [("Content-Type", "application/xml"), ("Content-Length", str(len(FULL)))]
            start("507 Insufficient Storage", head)
            return [FULL]
        if self.how == "forgetful" and "HTTP_IF_NONE_MATCH" in environ:
            self.s3.delete_object(*path.removeprefix("/").split("/", 1))
        if method != "PUT":
            return self.app(environ, start)
        with self.lock:
            return self.app(environ, start)

    def obey(self, path: str, word: str) -> None:
        if path == "/_behave":
            self.how = word
        else:
            self.s3.create_bucket(word, "us-east-1")


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
    app = Behaviour(create_backend_app("s3"), s3)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(
        json.dumps({"endpoint": f"http://127.0.0.1:{server.server_port}", "keys": keys}), flush=True
    )
    sys.stdin.read()


if __name__ == "__main__":
    serve()
