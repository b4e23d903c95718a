"""Groups of a queue: what each waits for, and the limits of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from qworker.client.manage.limits import groups, limits, waits_for
from qworker.web.page_request import Page
from qworker.web.pages.queue import inspection_of, unknown
from qworker.web.question import Question
from qworker.wire.groups import shown

if TYPE_CHECKING:
    from qworker.web.page_request import PageRequest

__all__ = ["confirm_remove_limit", "groups_and_limits"]

_LISTED: Final = 50
#: Groups of a shard that a page reads.
_READ: Final = 20_000


def groups_and_limits(request: PageRequest) -> Page:
    """Show the limits of a queue, and its largest groups."""
    name = request.names["queue"]
    inspection = inspection_of(request)
    if inspection is None:
        return unknown(name)
    client, ref = request.namespace.client, request.namespace.queues.ref(name)
    found = client.run(groups(ref, most=_LISTED, most_read=_READ))
    now_ms = request.namespace.now_ms()
    return Page(
        "limits.html",
        f"Groups of {name}",
        {
            "name": name,
            "limits": client.run(limits(ref)).items(),
            "groups": [(shown(group.name), group, waits_for(group, now_ms)) for group in found],
            "resumes": request.access.may("operate")
            and any(group.reason == "rate_limited" for group in found),
            "grouped": inspection.grouped,
            "read": _READ,
            "listed": _LISTED,
        },
        (name,),
        reads=True,
    )


def confirm_remove_limit(request: PageRequest) -> Page:
    """Ask before the limits of a name are removed."""
    name, limit = request.names["queue"], request.query.get("name", "")
    if inspection_of(request) is None:
        return unknown(name)
    ref = request.namespace.queues.ref(name)
    known = request.namespace.client.run(limits(ref))
    path = f"/queues/{quote(name)}/groups"
    if limit not in known:
        return Page("no_limit.html", "No such limit", {"name": name}, status=404, changes=False)
    return Question(
        sentence=f"1 name of {name}: {known[limit].text}. More general limits apply instead, if there are any.",
        button="Remove these limits",
        to=f"{path}/rm",
        fields={"name": limit},
        back=request.to(path),
    ).page(f"Remove the limits of {limit}")
