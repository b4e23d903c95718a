"""The report: aggregates of the journal, made by Spark, as one document and as one page."""

from __future__ import annotations

from qworker.pipeline.jobs.report.document import Scope, make_document
from qworker.pipeline.jobs.report.page import check_charts, render

__all__ = ["Scope", "check_charts", "make_document", "render"]
