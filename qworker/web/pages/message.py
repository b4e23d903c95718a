"""One message: where it is, its result, its life, header and body; the questions before it is changed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from qworker.client.inspect.life import Life, life
from qworker.client.inspect.pages import END
from qworker.client.inspect.peek import Inspection, inspect
from qworker.client.inspect.results import outcome as outcome_of
from qworker.client.inspect.search import Searched, search
from qworker.client.message import Stored
from qworker.errors import ProtectionError
from qworker.web.body import Body, show_body, show_value
from qworker.web.page_request import Page
from qworker.web.pages.header import KINDS, chain_of, headers_of, place_of
from qworker.web.pages.life import steps_of
from qworker.web.pages.queue import inspection_of, unknown
from qworker.web.question import FOR_GOOD, Question
from qworker.wire.states import STATES

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.client.queue_ref import QueueRef
    from qworker.web.page_request import PageRequest
    from qworker.wire.result import Outcome

__all__ = ["confirm_cancel", "confirm_delete", "message"]

#: Messages that a page reads, and at most.
_READ: Final = 5_000
_READ_MOST: Final = 500_000
#: Bytes of the journal that a page reads, and at most.
_JOURNAL: Final = 2**24
_JOURNAL_MOST: Final = 2**28
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,80}", re.ASCII)


def message(request: PageRequest) -> Page:
    """Show one message: where it is now, its result, its life, its headers and its body."""
    name, message_id = request.names["queue"], request.names["message"]
    if inspection_of(request) is None:
        return unknown(name)
    if not _ID.fullmatch(message_id):
        return _gone(request)
    client, ref = request.namespace.client, request.namespace.queues.ref(name)
    inspection = client.run(inspect(ref))
    searched = _search_one(request, ref, message_id)
    stored = searched.found[0] if searched.found else None
    most = request.number("journal", lowest=_JOURNAL, highest=_JOURNAL_MOST)
    history = _life(client, ref, message_id, inspection, stored, most)
    task = stored.task if stored else next((one.task for one in history.events if one.task), "")
    outcome, closed = _outcome(request, ref, message_id)
    if (
        stored is None
        and outcome is None
        and not closed
        and not history.events
        and searched.cursor == END
    ):
        return _gone(request)
    receipt = str(stored.receipt) if stored is not None and stored.receipt else ""
    return Page(
        "message.html",
        message_id,
        {
            "name": name,
            "id": message_id,
            "message": stored,
            "searched": searched,
            "searched_all": searched.cursor == END,
            "deeper": min(_READ_MOST, 10 * max(searched.read, _READ)),
            "task": task,
            "runs": [
                run
                for one in request.sample.workers
                for run in one.running
                if receipt and run.message_id == receipt
            ],
            "receipt": receipt,
            "steps": list(steps_of(history, inspection.now_ms if stored is not None else None)),
            "history": history,
            "mode": inspection.meta.get("journal", "off"),
            "journal": inspection.journal_entries,
            "journal_more": min(_JOURNAL_MOST, 8 * most)
            if not history.whole and most < _JOURNAL_MOST
            else 0,
            "outcome": outcome,
            "value": _value(outcome, task, request),
            "closed": closed,
            "verbs": _verbs(request, stored),
            **_stored_fields(request, stored, inspection),
        },
        (name,),
        reads=True,
    )


def _life(
    client: Client,
    ref: QueueRef,
    message_id: str,
    inspection: Inspection,
    stored: Stored | None,
    most_bytes: int,
) -> Life:
    """Read the events of a message, if its queue has a journal."""
    # One that was divided may have its events in the journal of a shard that was given up.
    has_journal = inspection.journal_entries or "shards" in inspection.meta
    if not has_journal or len(message_id) > 64:
        return Life()
    sent_ms = stored.sent_ms if stored is not None else None
    return client.run(life(ref, message_id, most_bytes=most_bytes, sent_ms=sent_ms))


def _stored_fields(
    request: PageRequest, stored: Stored | None, inspection: Inspection
) -> dict[str, object]:
    """What the page shows of a message that is still stored."""
    return {
        "kind": KINDS.get(stored.kind.value, "") if stored else "",
        "place": place_of(stored, inspection.now_ms) if stored else "",
        "headers": headers_of(stored, inspection) if stored else [],
        "body": show_body(stored, request.redact) if stored else None,
        "is_run": stored is not None and "c" in stored.flags,
        **chain_of(stored),
    }


def confirm_delete(request: PageRequest) -> Page:
    """Ask before a message is deleted."""
    return _confirm(
        request,
        "delete",
        "It is deleted forever. If its handler runs, it finishes; the message is dropped if it comes back.",
    )


def confirm_cancel(request: PageRequest) -> Page:
    """Ask before a message is cancelled."""
    return _confirm(
        request,
        "cancel",
        "It will not run; if its handler runs, it is asked to stop within 5 seconds. It is dropped if it comes back "
        "within 7 days.",
    )


def _confirm(request: PageRequest, verb: str, sentence: str) -> Page:
    name, message_id = request.names["queue"], request.names["message"]
    if inspection_of(request) is None:
        return unknown(name)
    if not _ID.fullmatch(message_id):
        return _gone(request)
    searched = _search_one(request, request.namespace.queues.ref(name), message_id)
    if not searched.found:
        return _gone(request)
    stored = searched.found[0]
    how, call = request.query.get("how", ""), f", a call of {stored.task}" if stored.task else ""
    if verb == "cancel" and how == "running":
        sentence = "The coroutine of its handler is cancelled now. A sync handler continues."
    elif verb == "cancel" and how == "kill":
        sentence = (
            "Its handler is stopped now. If it is not async, its process is ended, and what else runs "
            "there starts again."
        )
    return Question(
        sentence=f"1 {stored.state} message of {name}{call}. {sentence}",
        warning=FOR_GOOD,
        button=f"{verb.capitalize()} this message",
        destroys=True,
        to=f"/queues/{quote(name)}/messages/{quote(message_id)}/{verb}",
        fields={
            "state": stored.state,
            **({"how": how} if how in ("running", "kill") else {}),
        },
        back=request.to(f"/queues/{quote(name)}/messages/{quote(message_id)}"),
    ).page(f"{verb.capitalize()} {message_id}")


def _search_one(request: PageRequest, ref: QueueRef, message_id: str) -> Searched:
    """Search a message, first where a link says that it is."""
    client = request.namespace.client
    most = request.number("depth", lowest=4 * _READ, highest=_READ_MOST)
    state = request.query.get("state", "")

    def is_it(one: Stored) -> bool:
        return one.id == message_id

    if state in STATES:
        found = client.run(search(ref, is_it, state, most_read=most, most_found=1))
        if found.found:
            return _only(found, message_id)
    return _only(client.run(search(ref, is_it, most_read=most, most_found=1)), message_id)


def _only(searched: Searched, message_id: str) -> Searched:
    searched.found = [one for one in searched.found if one.id == message_id][-1:]
    return searched


def _outcome(request: PageRequest, ref: QueueRef, message_id: str) -> tuple[Outcome | None, str]:
    """Read the result of a message, or why it cannot be read."""
    if len(message_id) > 64:
        return None, ""
    try:
        return request.namespace.client.run(outcome_of(ref, message_id)), ""
    except ProtectionError as error:
        return None, error.problem


def _value(outcome: Outcome | None, task: str, request: PageRequest) -> Body | None:
    return (
        show_value(outcome.value, task, request.redact)
        if outcome and outcome.state == "ok"
        else None
    )


def _verbs(request: PageRequest, one: Stored | None) -> list[tuple[str, str, dict[str, str], bool]]:
    """Return the actions on a message: the verb, the text of its button, its fields, and whether it destroys."""
    if one is None or not one.id:
        return []
    verbs: list[tuple[str, str, dict[str, str], bool]] = []
    if request.access.may("operate"):
        if one.state in ("ready", "delayed"):
            verbs.append(("hold", "Hold", {}, False))
        if one.state in ("delayed", "held"):
            verbs.append(("enqueue", "Enqueue now", {}, False))
    if request.access.may("destroy"):
        if one.state != "dead":
            verbs.append(("cancel", "Cancel …", {}, True))
        if one.state == "unacked":
            verbs.append(("cancel", "Stop now …", {"how": "running"}, True))
            verbs.append(("cancel", "Kill …", {"how": "kill"}, True))
        verbs.append(("delete", "Delete …", {}, True))
    return verbs


def _gone(request: PageRequest) -> Page:
    return Page(
        "no_message.html",
        "No such message",
        {"name": request.names["queue"], "id": request.names["message"]},
        status=404,
        changes=False,
    )
