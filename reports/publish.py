"""Published studies: ``published/<study>/`` holds the results of a study, and the report.md made from them; results of
another scale than the demo have a separate folder, such as ``published/xl_recurrence--hour/``.

Pages, CSV, LaTeX and SVG are rendered from the results by ``python -m reports site``, into a folder that git ignores.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lit_transformers.records.files import PUBLISHED, RESULTS
from lit_transformers.records.floors import Floors
from lit_transformers.records.reproduction import Reproduction
from reports.read.results import read_results, write_results
from reports.read.study import ReportError, Study, load_study
from reports.report import REPORT, render, write_study


def publish(runs: Path, folder: str, to: Path = PUBLISHED, replace: bool = False) -> Path:
    """Writes a study's results and report.md, with its figures, to ``to/<folder>``, in place of an earlier publication.

    folder: the name of the plan's folder below ``runs/studies``, which is that of the publication: each scale and set
    of changes has its own. replace: also replace a publication that is more complete. Returns the path of report.md.

    Raises ReportError where there is no such study, its name leads out of its folder, no run has finished, or the
    existing publication is more complete; OSError where the folder cannot be written. The existing publication stays
    where the new report cannot be made.
    """
    study = load_study(runs, folder)
    name = study.plan.folder
    if study.missing() == len(study.runs):
        raise ReportError(f"{folder}: none of its {len(study.runs)} runs has finished, so there is nothing to publish")
    if not replace and (to / name / RESULTS).is_file():
        _require_no_loss(study, read_results(to / name / RESULTS), to / name)
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to, prefix=".") as fresh:
        new_folder = Path(fresh) / name
        write_study(study, new_folder, publication=to / name)
        if (to / name).exists():
            shutil.rmtree(to / name)
        new_folder.rename(to / name)
    return to / name / REPORT


def publish_remarks(directory: Path, remarks: Mapping[str, str], pilot: str = "") -> Path:
    """Puts the remarks of a study into its publication, in place of earlier ones, with the description of its
    ``pilot``, and returns the path of report.md.

    No run is needed: of the results the first line alone changes. Raises ReportError where nothing is published there,
    it has neither numbers of a source nor a pilot, or a line of it is damaged, and OSError where it cannot be written.
    """
    study = _read_published(directory)
    published_numbers = study.plan.published
    looks = study.plan.looks
    if looks is not None and pilot:
        study = dataclasses.replace(
            study, plan=dataclasses.replace(study.plan, looks=dataclasses.replace(looks, pilot=pilot))
        )
    elif published_numbers is None:
        raise ReportError(f"{directory}: its source has no published numbers, so that there is nothing to remark on")
    if published_numbers is not None:
        published_numbers = dataclasses.replace(published_numbers, remarks=remarks)
    plan = dataclasses.replace(study.plan, published=published_numbers)
    return _publish_again(dataclasses.replace(study, plan=plan), directory)


def publish_floors(directory: Path, measure: Callable[[Study], Floors]) -> Path:
    """Puts floors into the publication of a study that was published without any, and returns the path of report.md.

    measure: returns the floors of a study. Of the results the first line alone changes. Raises ReportError where
    nothing is published there, it has floors, or a line of it is damaged, and OSError where it cannot be written.
    """
    study = _read_published(directory)
    if study.floors is not None:
        raise ReportError(f"{directory}: it has floors, which were measured with its runs")
    return _publish_again(dataclasses.replace(study, floors=measure(study)), directory)


def publish_reproductions(directory: Path, reproductions: Sequence[Reproduction]) -> Path:
    """Puts the values of repeated runs into the publication of a study, each in place of an earlier one of the same arm
    and seed, and returns the path of report.md.

    Of the results the first line alone changes. Raises ReportError where nothing is published there, or a line of it is
    damaged, and OSError where it cannot be written.
    """
    study = _read_published(directory)
    values = {(one.arm, one.seed): one for one in (*study.reproductions, *reproductions)}
    return _publish_again(dataclasses.replace(study, reproductions=tuple(values.values())), directory)


def withdraw(directory: Path, reason: str) -> Path:
    """Marks a publication as wrong, in place of an earlier reason, and returns the path of report.md. Its numbers stay,
    as they were measured; its report and the gallery give the reason in place of its answer. The mark goes with the
    results: publishing the study again removes it.

    Raises ReportError where nothing is published there, a line of it is damaged, or the reason is empty, and OSError
    where it cannot be written.
    """
    if not reason.strip():
        raise ReportError(f"{directory}: give the reason of the withdrawal in one line")
    return _publish_again(
        dataclasses.replace(_read_published(directory), withdrawn=" ".join(reason.split())), directory
    )


def _read_published(directory: Path) -> Study:
    """Reads a published study. Raises ReportError where there is none, or a line of its results is damaged."""
    study = read_results(directory / RESULTS)
    if any(note.startswith(RESULTS) for note in study.notes):
        raise ReportError(f"{directory}: {RESULTS} is damaged; publish the study again")
    return study


def _publish_again(study: Study, directory: Path) -> Path:
    """Writes the results of a published study and its report, and returns the path of report.md."""
    write_results(study, directory / RESULTS, public=True)
    render(directory, publication=directory)
    return directory / REPORT


def _require_no_loss(new: Study, old: Study, folder: Path) -> None:
    """Raises ReportError if the published study has more finished runs, arms or seeds, and was not withdrawn."""
    if not old.withdrawn and any(
        ours < theirs for ours, theirs in zip(_finished_counts(new), _finished_counts(old), strict=True)
    ):
        counts = (
            "{} runs, {} arms and {} seeds have finished {}".format(*_finished_counts(study), where)
            for study, where in ((new, "here"), (old, "there"))
        )
        raise ReportError(f"{folder}: the publication is more complete: {', '.join(counts)}; replace it with --replace")


def _finished_counts(study: Study) -> tuple[int, int, int]:
    """Returns the numbers of finished runs, of their arms and of their seeds."""
    runs = [run for run in study.runs if run.missing is None]
    return len(runs), len({run.arm for run in runs}), len({run.seed for run in runs})


def published(folder: Path = PUBLISHED) -> list[Path]:
    """Returns the folders of all published studies, sorted by name."""
    return sorted(path.parent for path in folder.glob(f"*/{RESULTS}"))
