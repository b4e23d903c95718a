"""The dashboard: an ASGI application over the queues of one namespace.

    from qworker.web import Access, asgi
    application = asgi(app, authorize=lambda request: Access("ops", frozenset({"view"})))

`qworker web` serves it by itself. Needs the extra `web`.
"""

from __future__ import annotations

from qworker.web.access import DESTROY, OPERATE, RIGHTS, VIEW, Access
from qworker.web.mount import asgi

__all__ = ["DESTROY", "OPERATE", "RIGHTS", "VIEW", "Access", "asgi"]
