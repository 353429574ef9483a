"""``python -m reports judge``: runs of any program, in a table or a tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lit_transformers.cli.pairs import pairs_of
from reports.options import out, print_path
from reports.read.study import ReportError

__all__ = ["judge"]


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
        typer.Option("--over", metavar="COLUMN", help="The column that --to-target counts: steps, seconds or tokens."),
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
        raise ReportError("--over names the column that --to-target counts; give both, or --step for curves")
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
        print_path(write_plan)
        return
    if results is None:
        raise ReportError("no table is named; give its path, or - for standard input")
    findings = judge_by(question, results, plan, of_tracker)
    print_report(findings, out, full)
    if to is not None:
        write_study(findings.study, to)
        print_path(to / PAGE)
    if require is not None and any(one.verdict != require for one in findings.primary):
        raise typer.Exit(1)


def _numbers_of_seeds(looks: str) -> tuple[int, ...]:
    try:
        return tuple(int(look) for look in looks.split(",") if look.strip())
    except ValueError:
        raise ReportError(f"--looks {looks}: not numbers of seeds; write them as 4,8,16") from None
