"""Reports on studies: tables, figures and pages that are made from the records of runs on disk alone."""

from __future__ import annotations

from reports.read.records import ReportError, load_study
from reports.report import write_report, write_study

__all__ = ["ReportError", "load_study", "write_report", "write_study"]
