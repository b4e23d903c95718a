"""Groups of calls: those that wait, and one with its calls and what they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from qworker.client.inspect.group_calls import EndedCall, read_calls
from qworker.errors import InvalidNameError
from qworker.formats import ago, count, shortened
from qworker.web.body import show_value
from qworker.web.page_request import Page
from qworker.web.pages.queue import inspection_of, unknown
from qworker.web.question import FOR_GOOD, Question
from qworker.wire.names import check_message_id

if TYPE_CHECKING:
    from qworker.client.calls import CallGroup
    from qworker.web.page_request import PageRequest

__all__ = ["call_group", "call_groups", "confirm_abandon", "confirm_cancel_group"]

_PER_PAGE: Final = 100
_EXCERPT: Final = 160
_TONES: Final = {"blocked": "bad", "running": "good", "dead": "bad", "ok": "good"}
_POLICIES: Final = {
    "all": "when every call has ended",
    "successes": "when every call has succeeded",
    "first": "when the first call has succeeded",
}


def call_groups(request: PageRequest) -> Page:
    """List the groups of calls whose callbacks have not been sent yet."""
    listed = request.readings.calls.get()
    pages = max(1, -(-len(listed.groups) // _PER_PAGE))
    number = request.number("page", highest=pages)
    shown = listed.groups[(number - 1) * _PER_PAGE : number * _PER_PAGE]
    return Page(
        "call_groups.html",
        "Groups of calls",
        {
            "rows": [(one, _TONES.get(one.state, ""), _began(one, request)) for one in shown],
            "all": len(listed.groups),
            "cut": listed.cut,
            "page": number,
            "pages": pages,
        },
    )


def call_group(request: PageRequest) -> Page:
    """Show one group: what its callback waits for, and how each call has ended."""
    name, group_id = request.names["queue"], request.names["message"]
    if inspection_of(request) is None:
        return unknown(name)
    group = _find(request)
    if group is None:
        return _gone(request)
    pages = max(1, -(-group.size // _PER_PAGE))
    number = request.number("page", highest=pages)
    first = (number - 1) * _PER_PAGE
    ref = request.namespace.queues.ref(name)
    plan = read_calls(ref, group_id, first, min(_PER_PAGE, group.size - first))
    calls = request.namespace.client.run(plan) or []
    return Page(
        "call_group.html",
        group_id,
        {
            "name": name,
            "group": group,
            "tone": _TONES.get(group.state, ""),
            "waits": _waits(group),
            "began": _began(group, request),
            "policy": _POLICIES.get(group.policy, ""),
            "ends": group.is_open and request.access.may("destroy"),
            "calls": [
                (
                    call,
                    f"{group_id}.{call.number}",
                    _TONES.get(call.state, "warn"),
                    _note(call, request),
                )
                for call in calls
            ],
            "unread": min(_PER_PAGE, group.size - first) - len(calls),
            "page": number,
            "pages": pages,
        },
        (name,),
        reads=True,
    )


def confirm_abandon(request: PageRequest) -> Page:
    """Ask before a group is ended without what follows it."""
    return _confirm(request, "abandon", "Its calls continue to run.")


def confirm_cancel_group(request: PageRequest) -> Page:
    """Ask before a group is cancelled, and its calls."""
    return _confirm(
        request,
        "cancel",
        "Waiting calls are deleted, and running handlers are asked to stop within 5 seconds.",
    )


def _confirm(request: PageRequest, verb: str, calls: str) -> Page:
    """Ask before a group ends; `calls`: what becomes of its calls."""
    name = request.names["queue"]
    if inspection_of(request) is None:
        return unknown(name)
    group = _find(request)
    if group is None or not group.is_open:
        return _gone(request)
    path = f"/calls/{quote(name)}/{quote(group.id)}"
    follows = (
        f"the run {group.run_id} continues, and its gather fails for the calls that have not ended"
        if group.run_id
        else "its callback is not sent, and waits for the result end as cancelled"
    )
    return Question(
        sentence=f"1 {group.state} group of {name}, which waits for {count(group.left, 'call')}: {follows}. "
        f"{calls}",
        warning=FOR_GOOD,
        button=f"{verb.capitalize()} this group",
        destroys=True,
        to=f"{path}/{verb}",
        back=request.to(path),
    ).page(f"{verb.capitalize()} {group.id}")


def _find(request: PageRequest) -> CallGroup | None:
    try:
        group_id = check_message_id(request.names["message"])
    except InvalidNameError:
        return None
    return request.namespace.queues.get(request.names["queue"]).call_group(group_id)


def _began(group: CallGroup, request: PageRequest) -> str:
    return ago(group.began_ms, request.sample.now_ms) if group.began_ms else "–"


def _waits(group: CallGroup) -> str:
    """Say what the callback waits for."""
    if group.state == "starting":
        return f"{group.size - group.sent:,} of {count(group.size, 'call')} are not sent yet"
    if group.state == "blocked":
        return f"waits for {count(len(group.dead), 'dead letter')} to be redriven"
    if group.is_open:
        return f"waits for {count(group.left, 'call')}"
    if group.state == "decided":
        return "its run continues" if group.run_id else "its callback was sent"
    return "it has ended"


def _note(call: EndedCall, request: PageRequest) -> str:
    """Say how a call ended; values pass the hook, which does not know their task."""
    if call.state == "ok":
        if call.closed:
            return call.closed
        body: Any = show_value(call.value, "", request.redact)
        return shortened(" ".join((body.text or f"({body.note})").split()), _EXCERPT)
    return ", ".join(part for part in (call.reason, call.error) if part)


def _gone(request: PageRequest) -> Page:
    shows = {"name": request.names["queue"], "id": request.names["message"]}
    return Page("no_call_group.html", "No such group of calls", shows, status=404, changes=False)
