"""Reports: what the runs of a study have shown, from the records on disk alone."""

from __future__ import annotations

from reports.page import write_report, write_study
from reports.records import ReportError, as_plan, load_study

__all__ = ["ReportError", "as_plan", "load_study", "write_report", "write_study"]
