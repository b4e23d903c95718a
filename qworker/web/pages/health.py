"""Health: every check of the doctor, and the audit trail."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from qworker.client.namespace.audit import read_deeds
from qworker.health.finding import Status
from qworker.web.page_request import Page

if TYPE_CHECKING:
    from qworker.web.page_request import PageRequest

__all__ = ["audit", "health"]

_ORDER: Final = {Status.PROBLEM: 0, Status.WARNING: 1, Status.OK: 2}
_DEEDS: Final = 50
_ENTRY: Final = re.compile(r"[0-9]{1,16}-[0-9]{1,10}", re.ASCII)


def health(request: PageRequest) -> Page:
    """Show the doctor's findings, the worst first."""
    findings = request.sample.findings
    if findings is not None:
        findings = sorted(findings, key=lambda finding: _ORDER[finding.status])
    return Page("health.html", "Health", {"findings": findings})


def audit(request: PageRequest) -> Page:
    """Show the actions of operators, the latest first."""
    before = request.query.get("before", "")
    before = before if _ENTRY.fullmatch(before) else ""
    namespace = request.namespace
    deeds = read_deeds(
        namespace.client.execute, namespace.namespace, before=before, count=_DEEDS + 1
    )
    more = deeds[_DEEDS - 1].entry if len(deeds) > _DEEDS else ""
    return Page(
        "audit.html", "Audit trail", {"deeds": deeds[:_DEEDS], "before": before, "more": more}
    )
