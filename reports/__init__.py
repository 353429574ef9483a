"""Reports: what the runs of a study have shown, from the records on disk alone."""

from __future__ import annotations

from reports.page import write_report
from reports.records import ReportError

__all__ = ["ReportError", "write_report"]
