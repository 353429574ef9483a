"""What was measured, kept in the repository: ``reports/published/<study>/`` holds results and what was made of them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from reports.page import write_study
from reports.records import ReportError, Study, load_study
from reports.results import RESULTS, read_results

PUBLISHED = Path(__file__).with_name("published")


def publish(runs: Path, folder: str, to: Path = PUBLISHED, replace: bool = False) -> Path:
    """Puts a study's results, tables, figures and page into ``to/<study>``, in place of what was there.

    folder: the name of its plan's folder below ``runs/studies``. replace: also what is more complete, or of another
    scale or changes. Returns the path of report.md.

    Raises ReportError: no such study, a name that leads elsewhere, no run that has finished, or what is published holds
    more; OSError: the folder cannot be written. What was published before stays where the new report cannot be made.
    """
    read = load_study(runs, folder)
    name = read.plan.study
    if read.missing() == len(read.runs):
        raise ReportError(f"{folder}: none of its {len(read.runs)} runs has finished, so there is nothing to publish")
    if not replace and (to / name / RESULTS).is_file():
        _require_no_loss(read, read_results(to / name / RESULTS), to / name)
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to, prefix=".") as fresh:
        made = Path(fresh) / name
        page = write_study(read, made, public=True)
        if (to / name).exists():
            shutil.rmtree(to / name)
        made.rename(to / name)
    return to / name / page.name


def _require_no_loss(here: Study, there: Study, place: Path) -> None:
    """Raises ReportError where what is published is of another scale or changes, or where more of it has finished."""
    way_out = "publish it all the same by --replace"
    if here.plan.folder != there.plan.folder:
        raise ReportError(f"{place}: what is published is of {there.plan.folder}, not {here.plan.folder}; {way_out}")
    if any(ours < theirs for ours, theirs in zip(_finished(here), _finished(there), strict=True)):
        counts = (
            "{} runs, {} arms and {} seeds have finished {}".format(*_finished(one), where)
            for one, where in ((here, "here"), (there, "there"))
        )
        raise ReportError(f"{place}: what is published is more complete: {', '.join(counts)}; {way_out}")


def _finished(study: Study) -> tuple[int, int, int]:
    """How many runs have finished, of how many arms, and how many seeds they have."""
    runs = [run for run in study.runs if run.missing is None]
    return len(runs), len({run.arm for run in runs}), len({run.seed for run in runs})


def published(folder: Path = PUBLISHED) -> list[Path]:
    """The folders of all published studies, by name."""
    return sorted(path.parent for path in folder.glob(f"*/{RESULTS}"))
