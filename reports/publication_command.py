"""``python -m reports publish | withdraw | gallery | site | report``: published studies, and reports rendered again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lit_transformers.config import parse_assignments
from lit_transformers.records.files import PLAN, PUBLISHED, RESULTS
from lit_transformers.records.study_folder import PLAIN_SCALE, folder_name, require_name
from reports.options import Folder, err, out, print_path
from reports.read.results import read_results
from reports.read.study import ReportError
from sweeps.options import Runs

__all__ = ["gallery", "publish", "report", "site", "withdraw"]


def publish(
    study: Annotated[str, typer.Argument(help="The name of a study that was run here, or the folder of its plan.")],
    runs: Runs = Path("runs"),
    scale: Annotated[str, typer.Option("--scale", help="The scale that was run.")] = PLAIN_SCALE,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="A change of that run. Repeatable.")
    ] = None,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder of the publications.")] = PUBLISHED,
    replace: Annotated[bool, typer.Option("--replace", help="Also replace a more complete publication.")] = False,
) -> None:
    """Publish the results and the report of a study. Neither names a machine, person or date."""
    from reports.publish import publish as publish_study

    if (Path(study) / PLAN).is_file():
        plan_folder = Path(study).resolve()
        runs, name = plan_folder.parent.parent, plan_folder.name
    else:
        name = folder_name(study, scale, parse_assignments(changes or ()))
    page = publish_study(runs, name, to, replace)
    if missing := read_results(page.with_name(RESULTS)).missing():
        err.print(f"published with {missing} of its runs missing", style="yellow", highlight=False)
    print_path(page)


def withdraw(
    study: Annotated[str, typer.Argument(help="The name of the folder of a published study.")],
    reason: Annotated[str, typer.Argument(help="The fault, in one line.")],
    folder: Folder = PUBLISHED,
) -> None:
    """Mark a published study as wrong. Its report and the gallery show the reason in place of the answer."""
    from reports.publish import withdraw as withdraw_study

    require_name(study, "study")
    print_path(withdraw_study(folder / study, reason))


def gallery(
    folder: Folder = PUBLISHED,
    again: Annotated[bool, typer.Option("--render", help="First render every report again.")] = False,
) -> None:
    """Write the index of all published studies: findings, disagreements with sources, unresolved comparisons."""
    from reports.gallery import write_gallery

    with err.status("") as status:
        page = write_gallery(folder, again, lambda name: status.update(f"rendering {name}"))
    print_path(page)


def site(
    folder: Folder = PUBLISHED,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Where it is written.", show_default="site, in there")
    ] = None,
) -> None:
    """Write every published study as a page, CSV, LaTeX and SVG, with an index. Open index.html; no server needed."""
    from reports.gallery import write_site

    with err.status("") as status:
        page = write_site(folder, to, lambda name: status.update(f"rendering {name}"))
    print_path(page)


def report(
    study: Annotated[str, typer.Argument(help=f"A study's name, or a folder that holds {RESULTS}.")],
    runs: Runs = Path("runs"),
    folder: Folder = PUBLISHED,
    full: Annotated[bool, typer.Option("--full", help="Print every table, not one screen.")] = False,
) -> None:
    """Render a report again: from the last run here, or from the published results."""
    from reports.report import REPORT, print_report, render

    directory = _results_of(study, runs, folder)
    print_report(render(directory, publication=directory if directory.parent == folder else None), out, full)
    print_path(directory / REPORT)


def _results_of(study: str, runs: Path, folder: Path) -> Path:
    """Returns the folder that holds the results of a study.

    It is the argument itself if that is a folder, else the folder of the last report here or of the published one.
    Raises ReportError where neither of these holds results.
    """
    if Path(study).is_dir():
        return Path(study)
    require_name(study, "study")
    candidates = [runs / "studies" / study / "report", folder / study]
    directory = next((candidate for candidate in candidates if (candidate / RESULTS).is_file()), None)
    if directory is None:
        searched = " and ".join(str(candidate) for candidate in candidates)
        raise ReportError(f"{study}: no {RESULTS} in {searched}; make it by: python -m ablations report {study}")
    return directory
