"""The command line ``python -m reports``: publishes studies, compares them, and renders reports from stored results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import lit_transformers.startup.search_path  # noqa: F401  # isort: split
from lit_transformers.cli.console import SteadyConsole
from lit_transformers.cli.pairs import pairs_of
from lit_transformers.cli.plugin_option import with_plugins
from lit_transformers.cli.program import is_script, program_name
from lit_transformers.config import ConfigError, parse_assignments
from lit_transformers.records.files import PLAN, PUBLISHED, RESULTS
from lit_transformers.records.study_folder import PLAIN_SCALE, folder_name, require_name
from reports.read.results import read_results
from reports.read.study import ReportError
from sweeps.options import Runs

HELP = """Publish, compare and render the results of studies.

A report needs one file: results.jsonl, which holds all runs of a study. It needs neither the run folders nor torch.
"""

EXAMPLES = """Examples:

python -m reports publish xl_recurrence                                 write results and report.md into published/

python -m reports withdraw xl_recurrence "REASON"                       mark a publication as wrong

python -m reports gallery                                               write the index of all published studies

python -m reports gallery --render                                      render all reports again, then the index

python -m reports site                                                  write every study as a page, CSV and LaTeX

python -m reports report xl_recurrence                                  render one report again

python -m reports compare xl_recurrence runs2/studies/xl_recurrence     compare two studies arm by arm

python -m reports judge lightning_logs --metric val_loss                judge runs as a tracker keeps them

python -m reports judge results.csv --metric val_loss --minimize        judge runs that any program trained

python -m reports compare 8d193d82e0b72ae0 b1b730320b6c1a21 --to difference.md  compare two runs

Exit status: 0 success, 1 another verdict than the one required, 2 bad input.
"""

app = typer.Typer(
    help=HELP,
    epilog=EXAMPLES,
    no_args_is_help=True,
    add_completion=is_script("reports"),
    pretty_exceptions_enable=False,
)
out, err = SteadyConsole(), SteadyConsole(stderr=True)

Folder = Annotated[Path, typer.Option("--in", metavar="DIR", help="Folder of the publications.")]
Side = Annotated[str, typer.Argument(help="A run's key, a study's name, or the folder of either.")]


@app.command()
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
    _print_path(page)


@app.command()
def withdraw(
    study: Annotated[str, typer.Argument(help="The name of the folder of a published study.")],
    reason: Annotated[str, typer.Argument(help="The fault, in one line.")],
    folder: Folder = PUBLISHED,
) -> None:
    """Mark a published study as wrong. Its report and the gallery show the reason in place of the answer."""
    from reports.publish import withdraw as withdraw_study

    require_name(study, "study")
    _print_path(withdraw_study(folder / study, reason))


@app.command()
def gallery(
    folder: Folder = PUBLISHED,
    again: Annotated[bool, typer.Option("--render", help="First render every report again.")] = False,
) -> None:
    """Write the index of all published studies: findings, disagreements with sources, open comparisons."""
    from reports.gallery import write_gallery

    with err.status("") as status:
        page = write_gallery(folder, again, lambda name: status.update(f"rendering {name}"))
    _print_path(page)


@app.command()
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
    _print_path(page)


@app.command()
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
    _print_path(directory / REPORT)


@app.command()
def compare(
    one: Side,
    other: Side,
    runs: Runs = Path("runs"),
    folder: Folder = PUBLISHED,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE.md", help="Write it as Markdown, too.")] = None,
) -> None:
    """Compare two runs or two studies: configs path by path, metrics with intervals, costs as ratios."""
    from lit_transformers.records.files import write_text
    from reports.compare import compare as compare_sides
    from reports.compare import find_side, to_page
    from reports.show.tables import to_rich

    sides = find_side(one, runs, folder), find_side(other, runs, folder)
    tables, notes = compare_sides(*sides)
    for table in tables:
        out.print(to_rich(table, out.width))
    for note in notes:
        out.print(f"note: {note}", style="yellow", markup=False, highlight=False)
    if to is not None:
        write_text(to, to_page(*sides, tables, notes))
        _print_path(to)


@app.command()
def judge(
    results: Annotated[
        str | None,
        typer.Argument(
            help="A table: CSV, TSV, JSON lines, parquet, or a table pasted from a page; - is stdin. Or runs of a "
            "tracker: a folder, a database, or wandb:ENTITY/PROJECT."
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", metavar="COLUMN", help="The column of the values to judge.")
    ] = None,
    minimize: Annotated[
        bool, typer.Option("--minimize", help="Call less better. By default its name decides.")
    ] = False,
    maximize: Annotated[
        bool, typer.Option("--maximize", help="Call more better. By default its name decides.")
    ] = False,
    baseline: Annotated[
        list[str] | None,
        typer.Option("--baseline", metavar="ARM", help="Compare all arms with this one. Repeat it for several."),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option("--margin", help="The smallest effect that matters. With --ratio a ratio, such as 1.05."),
    ] = None,
    target: Annotated[
        float | None, typer.Option("--target", metavar="VALUE", help="Compare every arm with a value, not an arm.")
    ] = None,
    ratio: Annotated[bool, typer.Option("--ratio", help="Compare by ratio, for times and rates.")] = False,
    to_target: Annotated[
        float | None,
        typer.Option("--to-target", metavar="VALUE", help="Compare how soon runs reach a value of the metric."),
    ] = None,
    over: Annotated[
        str | None,
        typer.Option("--over", metavar="COLUMN", help="What --to-target counts: a column of steps, seconds or tokens."),
    ] = None,
    unpaired: Annotated[
        bool, typer.Option("--unpaired", help="Do not pair seeds: compare arms as independent samples.")
    ] = False,
    looks: Annotated[
        str,
        typer.Option(
            "--looks", metavar="N,N,...", help="Numbers of seeds at which to judge, chosen before the first look."
        ),
    ] = "",
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Judge by the looks that this file declares.")
    ] = None,
    write_plan: Annotated[
        Path | None,
        typer.Option("--write-plan", metavar="FILE", help="Declare looks in a file, to commit before the runs."),
    ] = None,
    arms: Annotated[str, typer.Option("--arms", metavar="ARM,ARM,...", help="Judge only these arms.")] = "",
    arm: Annotated[
        list[str] | None, typer.Option("--arm", metavar="COLUMN", help="The column of arms. Repeat it for factors.")
    ] = None,
    seed: Annotated[str | None, typer.Option("--seed", metavar="COLUMN", help="The column of seeds.")] = None,
    example: Annotated[
        str | None, typer.Option("--example", metavar="COLUMN", help="The column of examples, a value for each.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="COLUMN", help="The column that groups related examples.")
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", metavar="COLUMN", help="The column of steps; the last one is judged.")
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", metavar="COLUMN", help="The column that says how a run ended.")
    ] = None,
    cost: Annotated[str | None, typer.Option("--cost", metavar="COLUMN", help="The column of seconds.")] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="COLUMN", help="The column of data sets: judge each, and over all.")
    ] = None,
    correct: Annotated[
        str | None, typer.Option("--correct", metavar="COLUMN", help="The column of counts of correct examples.")
    ] = None,
    total: Annotated[
        str | None, typer.Option("--total", metavar="COLUMN", help="The column of counts of all examples.")
    ] = None,
    tracker: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TRACKER", help="Read runs of this tracker: lightning, wandb, tensorboard, mlflow, ..."
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="KEY=VALUE", help="Keep a tracker's runs with this config. Repeatable."),
    ] = None,
    pick: Annotated[
        str, typer.Option("--pick", metavar="last|best", help="Judge the last value of a tracker's run, or its best.")
    ] = "last",
    values: Annotated[
        str | None,
        typer.Option("--values", metavar="FILE", help="Read values of Hydra's jobs from this file in their folders."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FOLDER", help="Write the whole report: page, LaTeX, figures.")
    ] = None,
    require: Annotated[
        str | None,
        typer.Option(
            "--require", metavar="VERDICT", help="Exit with 1 unless every answer is this: better, worse, equal."
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Print every table, not one screen.")] = False,
) -> None:
    """Judge runs of any program, in a table or a tracker: paired seeds, intervals, one error rate, four verdicts."""
    from reports.judged_table import declare_looks, judge_by, question_of
    from reports.read.trackers.selection import TrackerQuestion
    from reports.report import PAGE, print_report, write_study

    if require not in (None, "better", "worse", "equal"):
        raise ReportError(f"--require {require}: no such verdict; give better, worse or equal")
    if pick not in ("last", "best"):
        raise ReportError(f"--pick {pick}: no such value; give last or best")
    if minimize and maximize:
        raise ReportError("--minimize and --maximize exclude each other; give one")
    if over is not None and to_target is None:
        raise ReportError("--over says what --to-target counts; give both, or --step for curves")
    question = question_of(
        metric,
        goal="minimize" if minimize else "maximize" if maximize else None,
        baseline=baseline or (),
        margin=margin,
        target=target,
        to_target=to_target,
        ratio=ratio,
        unpaired=unpaired,
        looks=_numbers_of_seeds(looks),
        arms=tuple(filter(None, map(str.strip, arms.split(",")))),
        arm=arm or (),
        seed=seed,
        example=example,
        cluster=cluster,
        step=over or step,
        status=status,
        cost=cost,
        task=task,
        correct=correct,
        total=total,
    )
    of_tracker = TrackerQuestion(tracker, pairs_of("--where", where), "best" if pick == "best" else "last", values)
    if write_plan is not None:
        declare_looks(write_plan, question, results, of_tracker)
        _print_path(write_plan)
        return
    if results is None:
        raise ReportError("no table is named; give its path, or - for standard input")
    findings = judge_by(question, results, plan, of_tracker)
    print_report(findings, out, full)
    if to is not None:
        write_study(findings.study, to)
        _print_path(to / PAGE)
    if require is not None and any(one.verdict != require for one in findings.primary):
        raise typer.Exit(1)


def _numbers_of_seeds(looks: str) -> tuple[int, ...]:
    try:
        return tuple(int(look) for look in looks.split(",") if look.strip())
    except ValueError:
        raise ReportError(f"--looks {looks}: not numbers of seeds; write them as 4,8,16") from None


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


def _print_path(path: Path) -> None:
    out.print(str(path), markup=False, highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. Bad input ends in one line on standard error."""
    try:
        with_plugins(typer.main.get_command(app)).main(arguments, prog_name=program_name("reports"))
    except SystemExit as system_exit:
        return system_exit.code if isinstance(system_exit.code, int) else 0
    except (ReportError, ConfigError) as error:
        return _print_error(str(error))
    except OSError as error:
        return _print_error(f"{error.filename or 'output'}: {error.strerror or error}")
    return 0


def _print_error(message: str) -> int:
    err.print(f"error: {' '.join(message.split())}", markup=False, highlight=False, soft_wrap=True)
    return 2


if __name__ == "__main__":
    sys.exit(main())
