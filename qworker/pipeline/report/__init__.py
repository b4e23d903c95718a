"""The report: Spark's aggregates of the journal as one document, and as one page."""

from __future__ import annotations

from qworker.pipeline.report.carried import Reported, report_increment
from qworker.pipeline.report.document import make_document
from qworker.pipeline.report.page import check_charts, render
from qworker.pipeline.report.scope import Scope

__all__ = ["Reported", "Scope", "check_charts", "make_document", "render", "report_increment"]
