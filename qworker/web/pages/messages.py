"""Messages of a queue, searched; and one message found in any queue."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from qworker.client.inspect.pages import END
from qworker.client.inspect.peek import delivered
from qworker.client.inspect.search import search
from qworker.client.message import Receipt
from qworker.formats import shortened
from qworker.web.body import show_body
from qworker.web.page_request import Page
from qworker.web.pages.queue import inspection_of, unknown
from qworker.wire.states import STATES

if TYPE_CHECKING:
    from qworker.client.message import Stored
    from qworker.web.page_request import PageRequest

__all__ = ["find", "messages"]

#: Messages that a page reads, and at most.
_READ: Final = 5_000
_READ_MOST: Final = 500_000
_LISTED: Final = 50
_EXCERPT: Final = 100
#: Bytes that a page reads: of messages of 4 MiB it lists eight.
_LISTED_BYTES: Final = 32 * 2**20
_SEARCHED_BYTES: Final = 4 * _LISTED_BYTES
#: Seconds for which queues are searched for one message, and messages that are read without a look at the clock.
_FIND_S: Final = 4.0
_AT_ONCE: Final = 2_000
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,80}", re.ASCII)
_RECEIPT: Final = re.compile(r"[A-Za-z0-9._-]{1,64}:[0-9]{1,4}(?:/[0-9]{1,2})?", re.ASCII)


def messages(request: PageRequest) -> Page:
    """Search the messages of a queue by state, id, task and text."""
    name, inspection = request.names["queue"], inspection_of(request)
    if inspection is None:
        return unknown(name)
    wanted = {
        field: request.query.get(field, "").strip() for field in ("state", "id", "task", "text")
    }
    states = [wanted["state"]] if wanted["state"] in STATES else []
    most = request.number("depth", lowest=_READ, highest=_READ_MOST)
    filtered = any(wanted[field] for field in ("id", "task", "text"))
    found = request.namespace.client.run(
        search(
            request.namespace.queues.ref(name),
            _fits(request, wanted),
            *states,
            most_read=most if filtered else _LISTED,
            most_found=_LISTED,
            most_bytes=_SEARCHED_BYTES if filtered else _LISTED_BYTES,
            cursor=request.query.get("cursor", "") or END,
        )
    )
    return Page(
        "messages.html",
        f"Messages of {name}",
        {
            "name": name,
            "wanted": wanted,
            "states": STATES,
            "filtered": filtered or bool(states),
            "found": found,
            "stored": inspection.stored + inspection.dead,
            "rows": [(one, _path(name, one), _excerpt(one, request)) for one in found.found],
            "now_ms": inspection.now_ms,
            "cursor": request.query.get("cursor", ""),
            "more": "" if found.cursor == END else found.cursor,
            "deeper": min(most * 10, _READ_MOST)
            if filtered and found.cursor != END and most < _READ_MOST
            else 0,
        },
        changes=False,
    )


def find(request: PageRequest) -> Page:
    """Find a message by its id, or by the receipt of its delivery, in any queue, within a few seconds."""
    wanted = request.query.get("id", "").strip()
    queues = [queue for queue in request.sample.read() if queue.stored or queue.dead]
    read, unread = 0, 0
    until_s = time.monotonic() + _FIND_S
    if _RECEIPT.fullmatch(wanted):
        receipt = Receipt.parse(wanted)
        for queue in sorted(queues, key=lambda queue: not queue.unacked):
            if time.monotonic() > until_s:
                unread += 1
                continue
            ref = request.namespace.queues.ref(queue.queue)
            stored = request.namespace.client.run(delivered(ref, receipt))
            if stored is not None and stored.id:
                return Page("", "", to=f"{_path(queue.queue, stored)}?state=unacked")
    elif _ID.fullmatch(wanted):
        for queue in queues:
            ref, cursor = request.namespace.queues.ref(queue.queue), ""
            while cursor != END:
                if read >= 10 * _READ or time.monotonic() > until_s:
                    unread += 1
                    break
                found = request.namespace.client.run(
                    search(
                        ref,
                        lambda one: one.id == wanted,
                        most_read=_AT_ONCE,
                        most_found=1,
                        cursor=cursor or END,
                    )
                )
                read, cursor = read + found.read, found.cursor
                if hits := [one for one in found.found if one.id == wanted]:
                    return Page("", "", to=f"{_path(queue.queue, hits[0])}?state={hits[0].state}")
    return Page(
        "find.html",
        "Find a message",
        {
            "wanted": wanted,
            "valid": bool(_ID.fullmatch(wanted) or _RECEIPT.fullmatch(wanted)),
            "receipt": ":" in wanted,
            "read": read,
            "unread": unread,
            "queues": sorted(request.sample.queues)[:_LISTED],
        },
        changes=False,
    )


def _path(queue: str, message: Stored) -> str:
    """Return the path of a message's page; '' of one without an id."""
    name = queue.partition("/")[0]
    return f"/queues/{quote(name)}/messages/{quote(message.id)}" if message.id else ""


def _fits(request: PageRequest, wanted: dict[str, str]) -> Callable[[Stored], bool]:
    message_id, task, text = wanted["id"], wanted["task"].lower(), wanted["text"].lower()

    def fits(one: Stored) -> bool:
        if message_id and not one.id.startswith(message_id):
            return False
        if task and task not in one.task.lower():
            return False
        # What the hook hides must not be found either.
        return not text or text in _text(one, request).lower()

    return fits


def _text(one: Stored, request: PageRequest) -> str:
    if request.redact is not None:
        return show_body(one, request.redact).text
    return "" if one.unreadable else one.body.decode("utf-8", "replace")


def _excerpt(one: Stored, request: PageRequest) -> str:
    body = show_body(one, request.redact, 4 * _EXCERPT)
    return shortened(" ".join(body.text.split()), _EXCERPT) or f"({body.note})"
