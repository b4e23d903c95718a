"""How to reach an object store.

Credentials, region and endpoint of a store come from the environment of the driver, as other tools read them:
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL. The tasks get these with
their work; without keys each host finds its own (profile, role). No query plan shows them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from qworker.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

__all__ = ["S3Options"]

#: Bound the wait for a store that is away: without them an error comes after three minutes.
_PATIENCE: Final[Mapping[str, str]] = {
    "max_retries": "4",
    "retry_timeout": "30s",
    "connect_timeout": "5s",
    "timeout": "120s",
}


@dataclass(frozen=True, slots=True)
class S3Options:
    """How to reach a store. Empty: not given."""

    key: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    region: str = ""
    endpoint: str = ""

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] | None = None) -> S3Options:
        """Read AWS_* variables. Raises `InvalidOptionError` for a key without secret, an endpoint without scheme."""
        given = os.environ if environment is None else environment
        endpoint = given.get("AWS_ENDPOINT_URL_S3") or given.get("AWS_ENDPOINT_URL") or ""
        if endpoint and urlsplit(endpoint).scheme not in ("http", "https"):
            raise InvalidOptionError(
                "AWS_ENDPOINT_URL",
                f"{endpoint!r} is not an address",
                "write https://HOST, or http://HOST:PORT",
            )
        key, secret = given.get("AWS_ACCESS_KEY_ID", ""), given.get("AWS_SECRET_ACCESS_KEY", "")
        if bool(key) != bool(secret):
            missing = "AWS_SECRET_ACCESS_KEY" if key else "AWS_ACCESS_KEY_ID"
            raise InvalidOptionError(missing, "is not set, but the other one is", "set both")
        region = given.get("AWS_REGION") or given.get("AWS_DEFAULT_REGION") or ""
        return cls(
            key,
            secret,
            given.get("AWS_SESSION_TOKEN", ""),
            # Stores of other makers have no regions, and do not mind a name.
            region or ("us-east-1" if endpoint else ""),
            endpoint.rstrip("/"),
        )

    def delta(self) -> dict[str, str]:
        """The options of `deltalake`. A commit is a put that fails if the object is there."""
        given = {
            "aws_access_key_id": self.key,
            "aws_secret_access_key": self.secret,
            "aws_session_token": self.token,
            "aws_region": self.region,
            "aws_endpoint_url": self.endpoint,
            "aws_allow_http": str(self.endpoint.startswith("http://")).lower(),
            "aws_conditional_put": "etag",
        }
        return {**{name: value for name, value in given.items() if value}, **_PATIENCE}

    def filesystem(self) -> S3FileSystem:
        """The file system of pyarrow, one for each process."""
        return _filesystem(self)


@cache
def _filesystem(options: S3Options) -> Any:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    given: dict[str, Any] = {
        "connect_timeout": 5,
        "request_timeout": 120,
        "retry_strategy": AwsStandardS3RetryStrategy(max_attempts=4),
    }
    if options.key:
        given |= {"access_key": options.key, "secret_key": options.secret}
        given |= {"session_token": options.token} if options.token else {}
    if options.region:
        given["region"] = options.region
    if options.endpoint:
        scheme, _, host = options.endpoint.partition("://")
        given |= {"scheme": scheme, "endpoint_override": host}
    return S3FileSystem(**given)
