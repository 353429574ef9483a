"""Reports on studies: tables, figures and pages that are made from the records of runs on disk alone.

Each of the names below is imported when it is first used, so that commands, and a shell that completes them, import no
more than they need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reports.read.records import ReportError, load_study
    from reports.report import write_report, write_study

__all__ = ["ReportError", "load_study", "write_report", "write_study"]

PLACES = {"ReportError": "read.records", "load_study": "read.records"}
"""The modules of the names that are not of ``report``."""


def __getattr__(name: str) -> Any:
    """Imports a name of the package (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{PLACES.get(name, 'report')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
