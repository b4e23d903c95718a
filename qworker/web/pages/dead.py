"""Dead letters: grouped by error, found by a filter, one in full; and the question before a change."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from qworker.client.dead.filter import DeadFilter
from qworker.client.dead.fingerprint import error_line, fingerprint
from qworker.client.dead.groups import ErrorGroup, group_by_error
from qworker.client.dead.newest import newest
from qworker.client.dead.pages import entries
from qworker.errors import InvalidOptionError
from qworker.formats import safe
from qworker.web.body import show_body
from qworker.web.page_request import Page
from qworker.web.pages.queue import inspection_of, unknown
from qworker.web.render import bars
from qworker.wire.ids import EntryId

if TYPE_CHECKING:
    from qworker.client.message import DeadLetter
    from qworker.monitor.namespace import Namespace
    from qworker.web.body import Redact
    from qworker.web.page_request import PageRequest

__all__ = [
    "FIELDS",
    "RATES",
    "confirm_drop",
    "confirm_redrive",
    "dead",
    "edit",
    "filter_of",
    "letter",
    "letter_at",
    "why_not_edited",
    "written",
]

#: Fields of the filter: those of `qworker dead`.
FIELDS: Final = (
    "task",
    "reason",
    "error_class",
    "error",
    "fingerprint",
    "id",
    "newer_than",
    "older_than",
)
#: Rates of a redrive that the form offers; '' is no limit.
RATES: Final = ("1/s", "10/s", "100/s", "1000/s", "")
#: Dead letters that a page reads, and at most, and before a question.
_READ: Final = 5_000
_READ_MOST: Final = 100_000
_COUNTED: Final = 20_000
_LISTED: Final = 25
_GROUPS: Final = 50
_BUCKETS: Final = 30
_EXAMPLES: Final = 5
#: Characters of a body that a form can hold; each may be sent as nine bytes.
_EDITED: Final = 6_000


def filter_of(query: Mapping[str, str]) -> DeadFilter:
    """Read the filter of a query or a form. Raises `InvalidOptionError`."""
    given: dict[str, Any] = {
        name: query[name].strip() for name in FIELDS if query.get(name, "").strip()
    }
    if message_id := given.pop("id", ""):
        given["ids"] = frozenset({message_id})
    return DeadFilter(**given)


def written(query: Mapping[str, str]) -> str:
    """Write a filter as options of the command line."""
    parts = [
        f"--{name.replace('_', '-')} {safe(query[name].strip())}"
        for name in FIELDS
        if query.get(name, "").strip()
    ]
    return " ".join(parts) or "--all"


def dead(request: PageRequest) -> Page:
    """Show the dead letters of a queue that fit, by error, and the newest of them."""
    inspection = inspection_of(request)
    if inspection is None:
        return unknown(request.names["queue"])
    name = request.names["queue"]
    shows = {
        "name": name,
        "number": inspection.dead,
        "jobs": request.jobs.of(name),
        "seen": request.number("seen", lowest=0, highest=2**40),
    }
    if request.live:
        return Page("dead.html", "", shows, (name,))
    wanted = filter_of(request.query)
    after = EntryId.parse(request.query["after"], "after") if request.query.get("after") else None
    most = request.number("depth", lowest=_READ, highest=_READ_MOST)
    ref = request.namespace.queues.ref(name)
    found = request.namespace.client.run(newest(ref, wanted, most_read=most, after=after))
    groups = group_by_error(found.found)
    listed = found.found[:_LISTED]
    more = listed[-1].entry if len(found.found) > _LISTED else found.last
    ranked = sorted(groups.values(), key=lambda group: -group.letter.died_ms)
    return Page(
        "dead.html",
        f"Dead letters of {name}",
        {
            **shows,
            "wanted": {field: request.query.get(field, "") for field in FIELDS},
            "filtered": not wanted.is_empty,
            "found": found,
            "groups": [(group, _history(group, found.now_ms)) for group in ranked[:_GROUPS]],
            "more_groups": max(0, len(ranked) - _GROUPS),
            "letters": [(letter, error_line(letter)) for letter in listed],
            "after": after,
            "more": more,
            "deeper": min(most * 10, _READ_MOST) if found.last and most < _READ_MOST else 0,
            "rates": RATES,
        },
        (name,),
    )


def letter(request: PageRequest) -> Page:
    """Show one dead letter in full."""
    found = _letter(request, request.names["entry"])
    if found is None:
        return _gone(request)
    name = request.names["queue"]
    return Page(
        "dead_letter.html",
        f"Dead letter of {name}",
        {
            "name": name,
            "letter": found,
            "fingerprint": fingerprint(found),
            "line": error_line(found),
            "body": show_body(found.message, request.redact),
            "flags": sorted(found.message.flags.items()),
        },
        changes=False,
    )


def edit(request: PageRequest) -> Page:
    """Show the body of a dead letter to be edited, unless it is closed, hidden, binary or too long for a form."""
    found = _letter(request, request.query.get("entry", ""))
    if found is None:
        return _gone(request)
    name, problem = request.names["queue"], why_not_edited(found, request.redact)
    text = "" if problem else show_body(found.message, None).text
    return Page(
        "dead_edit.html",
        f"Edit a dead letter of {name}",
        {
            "name": name,
            "letter": found,
            "line": error_line(found),
            "text": text,
            "problem": problem,
        },
        changes=False,
    )


def why_not_edited(letter: DeadLetter, redact: Redact | None) -> str:
    """Say why the body of a dead letter is not edited in a form; '' if it is."""
    whole = show_body(letter.message, None)
    if letter.message.unreadable or not letter.message.id:
        return letter.message.closed or "it was not written by qworker"
    if show_body(letter.message, redact) != whole:
        return "the redaction hook hides a part of its body here"
    if whole.note or len(whole.text) > _EDITED:
        return "its body is too long for a form, or not JSON"
    return ""


def confirm_redrive(request: PageRequest) -> Page:
    """Ask before dead letters are put back."""
    return _confirm(request, "redrive")


def confirm_drop(request: PageRequest) -> Page:
    """Ask before dead letters are deleted."""
    return _confirm(request, "drop")


def _confirm(request: PageRequest, verb: str) -> Page:
    name = request.names["queue"]
    inspection = inspection_of(request)
    if inspection is None:
        return unknown(name)
    entry = request.query.get("entry", "")
    rate = request.query.get("rate", "") if verb == "redrive" else ""
    if rate not in RATES:
        raise InvalidOptionError(
            "rate", f"{ascii(rate)[:40]} is not offered", "choose one of the form"
        )
    if entry:
        one = _letter(request, entry)
        if one is None:
            return _gone(request)
        found, read, whole, now_ms = [one], 1, True, inspection.now_ms
    else:
        wanted = filter_of(request.query)
        ref = request.namespace.queues.ref(name)
        result = request.namespace.client.run(newest(ref, wanted, most_read=_COUNTED))
        found, read, now_ms = result.found, result.read, result.now_ms
        whole = result.last is None
    fields = {field: request.query.get(field, "").strip() for field in FIELDS}
    return Page(
        "confirm.html",
        f"{verb.capitalize()} dead letters of {name}",
        {
            "name": name,
            "verb": verb,
            "count": len(found),
            "read": read,
            "whole": whole,
            "of": inspection.dead,
            "written": f"entry {entry}" if entry else written(fields),
            "examples": [(one, error_line(one)) for one in found[:_EXAMPLES]],
            "rate": rate,
            "undo_s": request.jobs.undo_s,
            "fields": {
                **{field: text for field, text in fields.items() if text and not entry},
                "entry": entry,
                "rate": rate,
                "at_ms": str(now_ms),
                "shown": str(len(found)),
                "job": secrets.token_urlsafe(12),
            },
        },
        changes=False,
    )


def _history(group: ErrorGroup, now_ms: int) -> object:
    """Draw when they died: from the first death to now."""
    lasts_ms = max(60_000, now_ms - group.first_ms)
    counts = Counter(
        min(_BUCKETS - 1, max(0, _BUCKETS - 1 - (now_ms - died_ms) * _BUCKETS // lasts_ms))
        for died_ms in group.died
    )
    return bars([counts[bucket] for bucket in range(_BUCKETS)], "Deaths", lasts_ms / 1000)


def letter_at(namespace: Namespace, queue: str, entry: str) -> DeadLetter | None:
    """Read a dead letter by its entry; None if there is none. Raises `InvalidOptionError`."""
    parsed = EntryId.parse(entry)
    shard = namespace.queues.ref(queue).shard(parsed.shard)
    span = (parsed.in_stream, parsed.in_stream)
    read = namespace.client.execute(entries(shard, "XRANGE", *span, 1))
    return read[0] if read else None


def _letter(request: PageRequest, entry: str) -> DeadLetter | None:
    if inspection_of(request) is None:
        return None
    return letter_at(request.namespace, request.names["queue"], entry)


def _gone(request: PageRequest) -> Page:
    name = request.names["queue"]
    return Page("gone.html", "No such dead letter", {"name": name}, status=404, changes=False)
