"""What was measured, kept in the repository: ``reports/published/<study>/`` holds results and what was made of them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from reports.page import write_report
from reports.records import require_name
from reports.results import RESULTS

PUBLISHED = Path(__file__).with_name("published")


def publish(runs: Path, study: str, to: Path = PUBLISHED) -> Path:
    """Puts a study's results, tables, figures and page into ``to/<study>``, in place of what was there.

    Returns the path of report.md. Raises ReportError: no such study, or a name that leads elsewhere; OSError: the
    folder cannot be written. What was published before stays where the new report cannot be made.
    """
    require_name(study, "study")
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to, prefix=".") as fresh:
        made = Path(fresh) / study
        page = write_report(runs, study, out=made)
        if (to / study).exists():
            shutil.rmtree(to / study)
        made.rename(to / study)
    return to / study / page.name


def published(folder: Path = PUBLISHED) -> list[Path]:
    """The folders of all published studies, by name."""
    return sorted(path.parent for path in folder.glob(f"*/{RESULTS}"))
