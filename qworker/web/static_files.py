"""Serves the style sheet, the scripts and the icon: packed, and kept by browsers while they do not change."""

from __future__ import annotations

import gzip
from functools import cache
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response

from qworker.web.render import ASSETS, asset, version

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["static_file"]


async def static_file(request: Request) -> Response:
    """Answer with the file that the path names."""
    name = request.path_params["name"]
    if name not in ASSETS:
        raise HTTPException(404)
    latest = request.query_params.get("v") == version(name)
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable" if latest else "no-cache",
        "Vary": "Accept-Encoding",
    }
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(_packed(name), media_type=ASSETS[name], headers=headers)
    return Response(asset(name), media_type=ASSETS[name], headers=headers)


@cache
def _packed(name: str) -> bytes:
    return gzip.compress(asset(name), 9, mtime=0)
