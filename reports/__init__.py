"""Reports on studies: tables, figures and pages that are made from the records of runs on disk alone.

Each of the names below is imported when it is first used, so that commands, and a shell that completes them, import no
more than they need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lit_transformers.lazy_names import lazy_names

if TYPE_CHECKING:
    from reports.judged_table import judge_table
    from reports.read.study import ReportError, load_study
    from reports.report import write_report, write_study

__all__ = ["ReportError", "judge_table", "load_study", "write_report", "write_study"]

_ELSEWHERE = {"ReportError": ".read.study", "judge_table": ".judged_table", "load_study": ".read.study"}
MODULES = dict.fromkeys(__all__, ".report") | _ELSEWHERE
__getattr__, __dir__ = lazy_names(__name__, MODULES)
