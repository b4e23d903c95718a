"""Does a store refuse to write an object that is there? Commits depend on it, and not all stores that speak S3 do.

Asked once, when an archive is created: an object is put twice with `If-None-Match: *`, and the second must fail. AWS
does it, so only stores with their own address are asked. `deltalake` and pyarrow have no call for such a put.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from qworker.errors import InvalidOptionError
from qworker.pipeline.jobs.store import ObjectPath

__all__ = ["check_conditional_puts"]

_TIMEOUT_S: Final = 30.0
#: What a store answers if the object is there.
_REFUSED: Final = (409, 412)


def check_conditional_puts(root: ObjectPath) -> None:
    """Raise `InvalidOptionError` if the store of an archive overwrites objects anyway, `OSError` without it."""
    options = root.options
    if not (options.endpoint and options.key):
        return
    probe = root / "_probe" / secrets.token_hex(8)
    first = _put(probe)
    if first >= 300:
        raise OSError(f"{options.endpoint} answered {first} to a put of {probe}")
    second = _put(probe)
    with suppress(OSError):
        probe.unlink()
    if second not in _REFUSED:
        raise InvalidOptionError(
            "archive",
            f"the store at {options.endpoint} overwrites an object that it was asked to keep (If-None-Match)",
            "two writers would lose each other's commits: use a store with conditional puts, or a directory",
        )


def _put(path: ObjectPath) -> int:
    """Put an object that must not be there; returns the status."""
    options = path.options
    target = urlsplit(options.endpoint)
    url_path = f"{target.path}/{quote(path.key)}"
    moment, body = datetime.now(UTC), b"qworker"
    digest = hashlib.sha256(body).hexdigest()
    headers = {
        "host": target.netloc,
        "if-none-match": "*",
        "x-amz-content-sha256": digest,
        "x-amz-date": f"{moment:%Y%m%dT%H%M%SZ}",
    }
    if options.token:
        headers["x-amz-security-token"] = options.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = f"PUT\n{url_path}\n\n{lines}\n{names}\n{digest}"
    scope = f"{moment:%Y%m%d}/{options.region}/s3/aws4_request"
    hashed = hashlib.sha256(request.encode()).hexdigest()
    signed = f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{scope}\n{hashed}"
    key = f"AWS4{options.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, signed.encode(), "sha256").hexdigest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={options.key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    url = f"{target.scheme}://{target.netloc}{url_path}"
    # S310: the scheme is http or https, see `S3Options`.
    asked = Request(url, data=body, headers=headers, method="PUT")  # noqa: S310
    try:
        with urlopen(asked, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return int(answer.status)
    except HTTPError as error:
        return error.code
    except HTTPException as error:
        raise OSError(str(error)) from error
